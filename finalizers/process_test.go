package finalizers

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
)

// informer is what a process has been told of one kind of object. What happened since waits in the feed.
type informer struct {
	toolscache.SharedIndexInformer
	observe  func(runtime.Object) client.Object
	feed     watch.Interface
	handlers []toolscache.ResourceEventHandler
}

// AddEventHandler implements toolscache.SharedInformer.
func (i *informer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	i.handlers = append(i.handlers, h)
	return nil, nil
}

// next tells of one thing that happened; false if the process knows all.
func (i *informer) next() bool {
	if len(i.feed.ResultChan()) == 0 {
		return false
	}
	e := <-i.feed.ResultChan()
	now, known := i.observe(e.Object), i.GetIndexer()
	was, exists, err := known.Get(now)
	switch {
	case err != nil:
	case e.Type == watch.Deleted:
		err = known.Delete(now)
		for _, h := range i.handlers {
			h.OnDelete(now)
		}
	case exists:
		err = known.Update(now)
		for _, h := range i.handlers {
			h.OnUpdate(was, now)
		}
	default:
		err = known.Add(now)
		for _, h := range i.handlers {
			h.OnAdd(now, false)
		}
	}
	if err != nil {
		panic(err) // An object without a key.
	}
	return true
}

// call is what a process asks of the API server. In the body "<current>" stands for the object's resourceVersion,
// and "<stale>" for any other.
type call struct{ verb, resource, name, body string }

// String returns the call in one line.
func (c call) String() string {
	return strings.TrimSpace(strings.Join([]string{c.verb, c.resource, c.name, c.body}, " "))
}

// send carries a call out, unless the stage is set for it to fail.
func (s *stage) send(verb string, o runtime.Object, subresource, name, body string, carryOut func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := call{verb, strings.TrimSuffix(s.resource(o).Resource+"/"+subresource, "/"), strings.TrimPrefix(name, "/"), body}
	if verb == "PATCH" || verb == "DELETE" {
		if stored, ok := look(s.store, o.(client.Object)); ok {
			c.body = strings.ReplaceAll(body, strconv.Quote(stored.GetResourceVersion()), `"<current>"`)
		}
		c.body = regexp.MustCompile(`(/resourceVersion","value"|"resourceVersion"):"\d+"`).ReplaceAllString(c.body, `$1:"<stale>"`)
		s.calls = append(s.calls, c)
	}
	if s.fault != nil {
		if answer, carriedOut := s.fault(c); answer != nil {
			if carriedOut {
				_ = carryOut() // This answer is lost.
			}
			return answer
		}
	}
	return carryOut()
}

// liveReader reads from the API server.
func (s *stage) liveReader() client.Reader {
	return interceptor.NewClient(s.client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, name client.ObjectKey, o client.Object, options ...client.GetOption) error {
			return s.send("GET", o, "", name.String(), "", func() error { return c.Get(ctx, name, o, options...) })
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			return s.send("LIST", list, "", "", "", func() error { return c.List(ctx, list, options...) })
		},
	})
}

// managerClient writes to the API server and reads objects of our own kinds, and Leases, from what the process knows.
func (s *stage) managerClient() client.Client {
	known := s.informers
	return interceptor.NewClient(s.client, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, name client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			found, ok, err := known[s.kind(o)].GetIndexer().GetByKey(strings.TrimPrefix(name.String(), "/"))
			switch {
			case err != nil:
				return err
			case !ok:
				return apierrors.NewNotFound(s.resource(o).GroupResource(), name.Name)
			}
			switch found := found.(type) {
			case *v1alpha1.AddressPool:
				found.DeepCopyInto(o.(*v1alpha1.AddressPool))
			case *v1alpha1.AddressBlock:
				found.DeepCopyInto(o.(*v1alpha1.AddressBlock))
			case *coordinationv1.Lease:
				found.DeepCopyInto(o.(*coordinationv1.Lease))
			default:
				return fmt.Errorf("the manager's client does not read %T", o)
			}
			return nil
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
			data, err := p.Data(o)
			s.must(err)
			return s.send("PATCH", o, "", client.ObjectKeyFromObject(o).String(), string(data), func() error { return c.Patch(ctx, o, p, options...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, subresource string, o client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
			data, err := p.Data(o)
			s.must(err)
			return s.send("PATCH", o, subresource, client.ObjectKeyFromObject(o).String(), string(data), func() error {
				return c.SubResource(subresource).Patch(ctx, o, p, options...)
			})
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			var wanted client.DeleteOptions
			wanted.ApplyOptions(options)
			body, err := json.Marshal(wanted.AsDeleteOptions())
			s.must(err)
			return s.send("DELETE", o, "", client.ObjectKeyFromObject(o).String(), string(body), func() error { return c.Delete(ctx, o, options...) })
		},
	})
}
