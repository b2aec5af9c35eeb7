package foreign

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Once is a live reader that asks for each page of a list once and has it in memory from then on: for who looks once and
// asks several questions about it. What it lists must not be changed. Single objects are read anew each time.
type Once struct {
	client.Reader

	mu      sync.Mutex
	answers map[question]func() (client.ObjectList, error)
}

// question is what a page is known by.
type question struct {
	list    reflect.Type
	options string
}

// NewOnce returns a reader that has not asked for anything yet.
func NewOnce(live client.Reader) *Once {
	return &Once{Reader: live, answers: map[question]func() (client.ObjectList, error){}}
}

// List implements client.Reader. It may be called by several at a time. Who asks first lends the context.
func (o *Once) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	var all client.ListOptions
	all.ApplyOptions(options)
	q := question{reflect.TypeOf(list), fmt.Sprintf("%q %v %v %d %q", all.Namespace, all.LabelSelector, all.FieldSelector, all.Limit, all.Continue)}
	o.mu.Lock()
	ask, asked := o.answers[q]
	if !asked {
		ask = sync.OnceValues(func() (client.ObjectList, error) {
			answer := reflect.New(q.list.Elem()).Interface().(client.ObjectList)
			return answer, o.Reader.List(ctx, answer, options...)
		})
		o.answers[q] = ask
	}
	o.mu.Unlock()
	answer, err := ask()
	if err != nil {
		return err
	}
	reflect.ValueOf(list).Elem().Set(reflect.ValueOf(answer).Elem())
	return nil
}
