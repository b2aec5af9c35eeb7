package backends_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

// book is a backend in which one hand-out is recorded.
type book struct {
	backends.Backend
	name   string
	broken error
	given  []string
}

func (b *book) Name() string { return b.name }

func (b *book) AllocationsOf(context.Context, ipam.Owner) ([]ipam.Allocation, error) {
	return []ipam.Allocation{handOut(b.name)}, b.broken
}

func (b *book) LiveAllocationsOf(ctx context.Context, o ipam.Owner) ([]ipam.Allocation, error) {
	return b.AllocationsOf(ctx, o)
}

func (b *book) Release(_ context.Context, a ipam.Allocation) error {
	b.given = append(b.given, a.Handle)
	return b.broken
}

func (b *book) Record(_ context.Context, p ipam.Place) (backends.Object, error) {
	return backends.Object{Kind: b.name, Name: p.Block}, b.broken
}

func handOut(backend string) ipam.Allocation {
	return ipam.Allocation{Backend: backend, Handle: backend + "-1", Places: []ipam.Place{{Block: backend + "-block"}}}
}

func TestSeveral(t *testing.T) {
	fire := errors.New("on fire")
	red, blue := &book{name: "red", broken: fire}, &book{name: "blue"}
	several := &backends.Several{}
	lists := map[string]func(context.Context, ipam.Owner) ([]ipam.Allocation, error){
		"AllocationsOf": several.AllocationsOf, "LiveAllocationsOf": several.LiveAllocationsOf,
	}
	for name, list := range lists {
		if got, err := list(t.Context(), ipam.Owner{}); len(got) > 0 || err != nil {
			t.Errorf("%s of none is %v, %v", name, got, err)
		}
	}
	several.Add(red)
	several.Add(blue)
	for name, list := range lists {
		got, err := list(t.Context(), ipam.Owner{})
		if diff := cmp.Diff([]ipam.Allocation{handOut("blue")}, got); diff != "" {
			t.Errorf("%s although one fails (-want +got):\n%s", name, diff)
		}
		if !errors.Is(err, fire) || err.Error() != "red: on fire" {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	if err := several.Release(t.Context(), handOut("blue")); err != nil {
		t.Error(err)
	}
	if err := several.Release(t.Context(), handOut("red")); !errors.Is(err, fire) {
		t.Errorf("releasing from red: %v", err)
	}
	if diff := cmp.Diff([][]string{{"red-1"}, {"blue-1"}}, [][]string{red.given, blue.given}); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
	record, err := several.Record(t.Context(), handOut("blue"))
	if diff := cmp.Diff(backends.Object{Kind: "blue", Name: "blue-block"}, record); diff != "" || err != nil {
		t.Errorf("record: %v (-want +got):\n%s", err, diff)
	}
	unknown := "finding the backend of green-1: there is no backend \"green\" here"
	if err := several.Release(t.Context(), handOut("green")); err == nil || err.Error() != unknown {
		t.Errorf("releasing from nowhere: %v, want %s", err, unknown)
	}
	if _, err := several.Record(t.Context(), handOut("green")); err == nil || err.Error() != unknown {
		t.Errorf("a record of nowhere: %v, want %s", err, unknown)
	}
}
