package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Plant writes objects into etcd in the form in which the API server keeps them, past all admission, for tests with more
// objects than the API server creates in a reasonable time. They must have what it would have given them but for UID and
// creationTimestamp, and none of them may be there already. Kinds are those of custom resources, Pods and Nodes. Many of them
// have one revision, so that a list may show only some until something else is written.
func (c *ControlPlane) Plant(ctx context.Context, objects ...client.Object) error {
	const atOnce = 100 // etcd takes 128.
	for len(objects) > atOnce {
		if err := c.plant(ctx, objects[:atOnce]); err != nil {
			return err
		}
		objects = objects[atOnce:]
	}
	return c.plant(ctx, objects)
}

func (c *ControlPlane) plant(ctx context.Context, objects []client.Object) error {
	type put struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	}
	type operation struct {
		Put put `json:"requestPut"`
	}
	var transaction struct {
		Success []operation `json:"success"`
	}
	for _, o := range objects {
		key, value, err := c.stored(o)
		if err != nil {
			return fmt.Errorf("encoding %s: %w", o.GetName(), err)
		}
		transaction.Success = append(transaction.Success, operation{put{[]byte(key), value}})
	}
	body, err := json.Marshal(transaction)
	if err != nil {
		return fmt.Errorf("writing to etcd: %w", err)
	}
	url := c.env.ControlPlane.Etcd.URL.JoinPath("v3", "kv", "txn").String()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("writing to etcd: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("writing to etcd: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // Nothing of it is read.
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("writing to etcd: %s", response.Status)
	}
	return nil
}

// stored returns an object's key in etcd and what stands there.
func (c *ControlPlane) stored(o client.Object) (key string, value []byte, err error) {
	kind, err := apiutil.GVKForObject(o, c.Client.Scheme())
	if err != nil {
		return "", nil, err
	}
	o.SetUID(uuid.NewUUID())
	o.SetCreationTimestamp(metav1.Now())
	o.GetObjectKind().SetGroupVersionKind(kind)
	var folder string
	switch o.(type) {
	case *corev1.Pod:
		folder = "pods"
	case *corev1.Node:
		folder = "minions"
	default:
		mapping, err := c.Client.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return "", nil, err
		}
		value, err = json.Marshal(o)
		return path.Join("/registry", kind.Group, mapping.Resource.Resource, o.GetNamespace(), o.GetName()), value, err
	}
	var buffer bytes.Buffer
	err = protobuf.NewSerializer(c.Client.Scheme(), c.Client.Scheme()).Encode(o, &buffer)
	return path.Join("/registry", folder, o.GetNamespace(), o.GetName()), buffer.Bytes(), err
}
