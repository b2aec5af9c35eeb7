package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// book is an API server that sends lists page by page, and decodes them into whatever it is given, as a client does.
type book struct {
	client.Reader
	pods, nodes []string
	asked       []string
}

func (b *book) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(opts)
	b.asked = append(b.asked, fmt.Sprintf("%T %d from %q", list, o.Limit, o.Continue))
	pages := b.nodes
	if _, ok := list.(*corev1.PodList); ok {
		pages = b.pods
	}
	page := len(o.Continue)
	if page >= len(pages) || len(b.asked) > 4 {
		return errors.New("there is no such page")
	}
	return json.Unmarshal([]byte(pages[page]), list)
}

func TestAnObservationReadsEveryPageForItself(t *testing.T) {
	api := &book{
		pods: []string{
			`{"metadata": {"continue": "*"}, "items": [{
				"metadata": {"name": "ends", "deletionTimestamp": "2026-11-30T12:00:00Z", "annotations": {"k8s.v1.cni.cncf.io/networks": "red"}},
				"spec": {"hostNetwork": true, "nodeName": "n1"}, "status": {"phase": "Failed"}}]}`,
			`{"items": [{"metadata": {"name": "lives"}, "status": {"podIP": "10.0.0.1"}}]}`,
		},
		nodes: []string{
			`{"metadata": {"continue": "*"}, "items": [{
				"metadata": {"name": "off"}, "spec": {"taints": [{"key": "node.kubernetes.io/out-of-service"}]}}]}`,
			`{"items": [{"metadata": {"name": "on"}}]}`,
		},
	}
	got, missing, err := cluster.Observation(t.Context(), api, nil, io.Discard)
	if err != nil || missing != nil {
		t.Fatal(missing, err)
	}
	want := map[string]string{
		"ends":  "deleted, Failed, of n1's network, addresses unknown",
		"lives": "10.0.0.1",
	}
	pods := map[string]string{}
	for _, p := range got.Pods {
		text := ""
		if !p.Deleted.IsZero() {
			text = "deleted, "
		}
		text += string(p.Phase)
		if p.HostNetwork {
			text += ", of " + p.Node + "'s network"
		}
		if p.AddressesUnknown {
			text += ", addresses unknown"
		}
		for _, a := range p.Addresses {
			text += a.String()
		}
		pods[p.Name] = text
	}
	if diff := cmp.Diff(want, pods); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	nodes := []ipam.Node{{Name: "off", OutOfService: true}, {Name: "on"}}
	if diff := cmp.Diff(nodes, got.Nodes, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	asked := []string{`*v1.PodList 500 from ""`, `*v1.PodList 500 from "*"`, `*v1.NodeList 500 from ""`, `*v1.NodeList 500 from "*"`}
	if diff := cmp.Diff(asked, api.asked); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
}
