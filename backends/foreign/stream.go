package foreign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Streams is a client that decodes lists of some groups object by object while they arrive, so that an answer is never in
// memory as a whole. It asks for all at once, whatever the limit: the API server has that in its cache, whereas it may have
// to read the second page of a list, and every one after that, from etcd. Field managers are left out.
type Streams struct {
	client.Client

	server rest.Interface
	groups []string
}

// NewStreams returns such a client around one that was made with the same configuration. Its scheme must have the groups.
func NewStreams(c client.Client, config *rest.Config, groups ...string) (*Streams, error) {
	config = rest.CopyConfig(config)
	config.AcceptContentTypes, config.ContentType = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.NegotiatedSerializer = serializer.NewCodecFactory(c.Scheme()).WithoutConversion()
	server, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client that streams: %w", err)
	}
	return &Streams{Client: c, server: server, groups: groups}, nil
}

// List implements client.Reader.
func (s *Streams) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	kind, err := apiutil.GVKForObject(list, s.Scheme())
	if err != nil || !slices.Contains(s.groups, kind.Group) {
		return s.Client.List(ctx, list, options...)
	}
	kind.Kind = strings.TrimSuffix(kind.Kind, "List")
	mapping, err := s.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return err
	}
	var all client.ListOptions
	all.ApplyOptions(options)
	asked := all.AsListOptions()
	request := s.server.Get().AbsPath("apis", kind.Group, kind.Version).Resource(mapping.Resource.Resource)
	for name, value := range map[string]string{"labelSelector": asked.LabelSelector, "fieldSelector": asked.FieldSelector} {
		if value != "" {
			request.Param(name, value)
		}
	}
	answer, err := request.NamespaceIfScoped(all.Namespace, all.Namespace != "").Stream(ctx)
	if err != nil {
		return err
	}
	return errors.Join(fill(list, json.NewDecoder(answer)), answer.Close())
}

// fill decodes a list.
func fill(list client.ObjectList, from *json.Decoder) error {
	pointer, err := meta.GetItemsPtr(list)
	if err != nil {
		return err
	}
	items := reflect.ValueOf(pointer).Elem()
	err = each(from, '{', func() error {
		switch name, err := from.Token(); {
		case err != nil:
			return err
		case name == "items":
			return each(from, '[', func() error { return add(items, from) })
		case name == "metadata":
			var about metav1.ListMeta
			if err := from.Decode(&about); err != nil {
				return err
			}
			list.SetResourceVersion(about.ResourceVersion)
			return nil
		default:
			return from.Decode(&json.RawMessage{})
		}
	})
	if err != nil {
		return fmt.Errorf("decoding a list: %w", err)
	}
	return nil
}

// each decodes what begins with that bracket, and then every part of it, up to the bracket's end.
func each(from *json.Decoder, bracket json.Delim, part func() error) error {
	switch begin, err := from.Token(); {
	case err != nil:
		return unfinished(err)
	case begin == nil:
		return nil // A list of nothing may be null.
	case begin != bracket:
		return fmt.Errorf("%v stands where %v should", begin, bracket)
	}
	for from.More() {
		if err := part(); err != nil {
			return unfinished(err)
		}
	}
	_, err := from.Token()
	return unfinished(err)
}

// unfinished is what the end of an answer in the middle of a list is.
func unfinished(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// add decodes one more item.
func add(items reflect.Value, from *json.Decoder) error {
	items.Grow(1)
	n := items.Len()
	items.SetLen(n + 1)
	item := items.Index(n).Addr()
	item.Elem().SetZero()
	if err := from.Decode(item.Interface()); err != nil {
		return err
	}
	if o, ok := reflect.TypeAssert[client.Object](item); ok {
		o.SetManagedFields(nil)
	}
	return nil
}
