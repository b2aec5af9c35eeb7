// Package foreign is what the adapters of other programs' records share.
package foreign

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// page is how many objects are asked for at a time, live.
const page = 500

// Source is where records are read.
type Source struct {
	// Cached is a reader with a cache, nil if there is none; Live is one without.
	Cached, Live client.Reader
	// As returns what a list is filled through, where the reader knows it as another type; nil for the list itself.
	As func(client.ObjectList) client.ObjectList
}

// Reader returns what to read with.
func (s Source) Reader(live bool) client.Reader {
	if live || s.Cached == nil {
		return s.Live
	}
	return s.Cached
}

// Paged is a list of small objects, of which more may be asked for at a time: the API server walks over all that are left
// for each page, so that many small pages cost it more than few large ones.
type Paged interface {
	// Page is how many.
	Page() int64
}

// Lists returns all pages of a list; a cache has one. What a cache returns must not be changed.
func Lists[T any, L interface {
	*T
	client.ObjectList
}](ctx context.Context, from Source, live bool, options ...client.ListOption) (pages []T, err error) {
	if live || from.Cached == nil {
		err = Each[T, L](ctx, from, func(page *T) { pages = append(pages, *page) }, options...)
	} else {
		pages = make([]T, 1)
		err = from.Cached.List(ctx, from.into(L(&pages[0])), append(options, client.UnsafeDisableDeepCopy)...)
	}
	if err != nil {
		return nil, err
	}
	return pages, nil
}

// Each reads a list without a cache, and visits page by page what nobody needs as a whole.
func Each[T any, L interface {
	*T
	client.ObjectList
}](ctx context.Context, from Source, visit func(*T), options ...client.ListOption) error {
	limit := int64(page)
	if p, ok := any(L(new(T))).(Paged); ok {
		limit = p.Page()
	}
	options = append(options, client.Limit(limit))
	for next := ""; ; {
		var list T
		if err := from.Live.List(ctx, from.into(L(&list)), append(options, client.Continue(next))...); err != nil {
			return err
		}
		visit(&list)
		if next = L(&list).GetContinue(); next == "" {
			return nil
		}
	}
}

// into returns what a list is filled through.
func (s Source) into(list client.ObjectList) client.ObjectList {
	if s.As == nil {
		return list
	}
	return s.As(list)
}

// Unserved tells whether the error says that the API server has no such kind, as where the program is of another release.
func Unserved(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }

// Refused tells whether the API server refused a patch because of what the object was then: a revision that has passed is
// a conflict, and a test that failed, or a path that is not there any more, is invalid.
func Refused(err error) bool { return apierrors.IsConflict(err) || apierrors.IsInvalid(err) }
