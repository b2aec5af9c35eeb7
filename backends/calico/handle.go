package calico

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"gomodules.xyz/jsonpatch/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/foreign"
)

// handle reads a handle, live; nil if there is none, or if it is marked as deleted. What cannot be an object's name has none.
func (b *Backend) handle(ctx context.Context, id string) (*IPAMHandle, error) {
	h := &IPAMHandle{}
	h.Name = strings.ToLower(id)
	if len(content.IsPathSegmentName(h.Name)) > 0 {
		return nil, nil //nolint:nilnil // No handle is an answer.
	}
	switch err := b.get(ctx, true, h); {
	case errors.Is(err, backends.ErrNotFound), err == nil && (h.Spec.Deleted || h.Spec.HandleID != id):
		return nil, nil //nolint:nilnil // No handle is an answer.
	case err != nil:
		return nil, fmt.Errorf("reading IPAMHandle %q: %w", h.Name, err)
	}
	return h, nil
}

// subtract takes from a handle's counts what was given back, by block, unless the handle is younger than that or another
// one by now. A handle that counts nothing any more goes.
func (b *Backend) subtract(ctx context.Context, seen *IPAMHandle, given map[netip.Prefix]int, age time.Duration) error {
	if seen == nil || len(given) == 0 {
		return nil
	}
	for attempt := 1; ; attempt++ {
		h, err := b.handle(ctx, seen.Spec.HandleID)
		if err != nil || h == nil || h.UID != seen.UID || b.younger(h, age) {
			return err
		}
		counts := maps.Clone(h.Spec.Block)
		for text := range counts {
			cidr, err := netip.ParsePrefix(text)
			if err != nil {
				continue
			}
			if counts[text] -= given[cidr]; counts[text] <= 0 {
				delete(counts, text)
			}
		}
		err = b.setCounts(ctx, h, counts)
		if err != nil && (!foreign.Refused(err) || attempt == attempts) {
			return fmt.Errorf("counting down IPAMHandle %q: %w", seen.Name, err)
		}
		if err == nil {
			return nil
		}
	}
}

func (b *Backend) younger(o client.Object, age time.Duration) bool {
	return b.now().Sub(o.GetCreationTimestamp().Time) < age
}

// setCounts writes a handle's counts as it was read, or deletes it if it counts nothing.
func (b *Backend) setCounts(ctx context.Context, h *IPAMHandle, counts map[string]int) error {
	patch := h.patch(counts)
	switch {
	case len(counts) == 0:
		return b.remove(ctx, h, deleted(), patch...)
	case len(patch) == 0:
		return nil
	}
	return b.patch(ctx, h, patch)
}

// patch returns what makes the stored counts others.
func (h *IPAMHandle) patch(counts map[string]int) []jsonpatch.Operation {
	var patch []jsonpatch.Operation
	if h.Spec.Block == nil {
		patch = append(patch, jsonpatch.NewOperation("add", "/spec/block", struct{}{}))
	}
	for _, cidr := range slices.Sorted(maps.Keys(h.Spec.Block)) {
		if _, ok := counts[cidr]; !ok {
			patch = append(patch, jsonpatch.NewOperation("remove", "/spec/block/"+escape(cidr), nil))
		}
	}
	for _, cidr := range slices.Sorted(maps.Keys(counts)) {
		if n, ok := h.Spec.Block[cidr]; !ok || n != counts[cidr] {
			patch = append(patch, jsonpatch.NewOperation("add", "/spec/block/"+escape(cidr), counts[cidr]))
		}
	}
	return patch
}

// count lets a handle count one more address than the block has of it, and makes the handle if there is none. It returns
// the handle if it wrote it, else nil.
func (b *Backend) count(ctx context.Context, id string, r record) (*IPAMHandle, error) {
	cidr, want := r.cidr.String(), 1
	for e := range r.entries() {
		if e.handle == id {
			want++
		}
	}
	for attempt := 1; ; attempt++ {
		h := &IPAMHandle{}
		h.Name = strings.ToLower(id)
		err := b.get(ctx, true, h)
		switch {
		case errors.Is(err, backends.ErrNotFound):
			h.Spec = IPAMHandleSpec{HandleID: id, Block: map[string]int{cidr: want}}
			err = b.writer.Create(ctx, object(b.served, h))
		case err == nil && h.Spec.Deleted:
			if err = b.delete(ctx, h); err == nil && attempt < attempts {
				continue
			}
		case err == nil && h.Spec.HandleID != id:
			return nil, fmt.Errorf("counting up IPAMHandle %q: it is of handle %q", h.Name, h.Spec.HandleID)
		case err == nil && h.Spec.Block[cidr] >= want:
			return nil, nil //nolint:nilnil // No write is an answer.
		case err == nil:
			counts := maps.Clone(h.Spec.Block)
			if counts == nil {
				counts = map[string]int{}
			}
			counts[cidr] = want
			err = b.setCounts(ctx, h, counts)
		}
		switch {
		case err == nil:
			return h, nil
		case attempt == attempts, !foreign.Refused(err) && !apierrors.IsAlreadyExists(err):
			return nil, fmt.Errorf("counting up IPAMHandle %q: %w", h.Name, err)
		}
	}
}
