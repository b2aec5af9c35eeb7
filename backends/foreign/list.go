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

// Lists returns all pages of a list; a cache has one. What a cache returns must not be changed.
func Lists[T any, L interface {
	*T
	client.ObjectList
}](ctx context.Context, from Source, live bool, options ...client.ListOption) ([]T, error) {
	reader := from.Reader(live)
	if live = live || from.Cached == nil; live {
		options = append(options, client.Limit(page))
	} else {
		options = append(options, client.UnsafeDisableDeepCopy)
	}
	var pages []T
	for next := ""; ; {
		var list T
		var into client.ObjectList = L(&list)
		if from.As != nil {
			into = from.As(into)
		}
		if err := reader.List(ctx, into, append(options, client.Continue(next))...); err != nil {
			return nil, err
		}
		pages = append(pages, list)
		if next = L(&list).GetContinue(); next == "" || !live {
			return pages, nil
		}
	}
}

// Unserved tells whether the error says that the API server has no such kind, as where the program is of another release.
func Unserved(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }

// Refused tells whether the API server refused a patch because of what the object was then: a revision that has passed is
// a conflict, and a test that failed, or a path that is not there any more, is invalid.
func Refused(err error) bool { return apierrors.IsConflict(err) || apierrors.IsInvalid(err) }
