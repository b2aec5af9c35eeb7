package calico_test

import (
	"testing"

	"github.com/oakum-dev/oakum/backends/calico"
)

func TestSlim(t *testing.T) {
	block := func(attributes ...calico.Attribute) calico.IPAMBlock {
		return calico.IPAMBlock{Spec: calico.IPAMBlockSpec{
			CIDR: cidr, Attributes: attributes, SequenceNumber: 7, SequenceNumberForAllocation: map[string]uint64{"0": 5},
		}}
	}
	full := map[string]string{"pod": "web-0", "namespace": "default", "timestamp": "2026-11-30 12:40:46"}
	alone := map[string]string{"timestamp": "2026-11-30 12:40:46"}
	before := func() calico.IPAMBlock {
		return block(calico.Attribute{HandleID: "a.bc", Secondary: full}, calico.Attribute{HandleID: "a.cd", Secondary: alone, AlternateOwnerAttrs: full}, calico.Attribute{})
	}
	told := map[string]string{"pod": "web-0", "namespace": "default"}
	want := block(calico.Attribute{HandleID: "a.bc", Secondary: told}, calico.Attribute{HandleID: "a.cd", Secondary: alone, AlternateOwnerAttrs: told}, calico.Attribute{})
	v1, v3 := before(), calico.IPAMBlockV3(before())
	handle := &calico.IPAMHandle{Spec: calico.IPAMHandleSpec{HandleID: "a.bc"}}
	for _, o := range []any{&v1, &v3, handle, "something else"} {
		calico.Slim(o)
	}
	if diff := diff(want, v1); diff != "" {
		t.Errorf("in one group (-want +got):\n%s", diff)
	}
	if diff := diff(want, calico.IPAMBlock(v3)); diff != "" {
		t.Errorf("in the other (-want +got):\n%s", diff)
	}
	if diff := diff(&calico.IPAMHandle{Spec: calico.IPAMHandleSpec{HandleID: "a.bc"}}, handle); diff != "" {
		t.Errorf("a handle (-want +got):\n%s", diff)
	}
}
