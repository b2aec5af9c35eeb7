package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/native"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// connection says which cluster a command is about.
type connection struct {
	kubeconfig, context string
	// to returns a client without a cache.
	to func() (client.Client, error)
}

// connect connects to the cluster that kubectl would talk to.
func (c *connection) connect() (client.Client, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the cluster: %w: set KUBECONFIG or --kubeconfig", err)
	}
	return newClient(config)
}

func newClient(config *rest.Config) (client.Client, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 50, 100
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return c, nil
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("registering the API types: %w", err)
	}
	return scheme, nil
}

// page is how many objects are asked for at a time.
const page = 500

// finding is all that a look at the cluster tells.
type finding struct {
	backend *native.Backend
	pools   []ipam.Pool
	blocks  []ipam.Block
	judged  []ipam.Judgement
	// observed is what was seen of the owners, and world the same in the form in which the law asks it.
	observed ipam.Observation
	world    ipam.World
	// problems are breaches of rules in what is stored: written before a rule, or while nobody looked.
	problems []recordProblem
	// missing says what could not be read. What depends on it cannot be told.
	missing []string
}

// recordProblem is a breach of a rule by a stored object.
type recordProblem struct {
	// Object is kind and name.
	Object string `json:"object"`
	// Rule is the one that is broken, such as allocation-unowned.
	Rule ipam.Rule `json:"rule"`
	// Field is the path of the value that breaks it.
	Field string `json:"field"`
	// Message says what is wrong, and what to do about it.
	Message string `json:"message"`
}

// gather reads everything once: records first, then the owners. What may not be read is named, and the rest still works.
func gather(ctx context.Context, c client.Client, progress io.Writer) (finding, error) {
	f := finding{backend: native.New(c, c, c)}
	note := func(what string, err error) error {
		if apierrors.IsForbidden(err) || meta.IsNoMatchError(err) || errors.Is(err, cluster.ErrNotServed) || apierrors.IsNotFound(err) {
			f.missing = append(f.missing, fmt.Sprintf("%s: %v", what, err))
			return nil
		}
		return err
	}
	objects, err := listPools(ctx, c)
	if err != nil {
		if err := note("pools", err); err != nil {
			return f, fmt.Errorf("listing AddressPools: %w", err)
		}
	}
	if f.blocks, err = f.backend.LiveBlocks(ctx, backends.Query{}); err != nil {
		if err := note("blocks", err); err != nil {
			return f, err
		}
	}
	fmt.Fprintf(progress, "%d pools, %d blocks\n", len(objects), len(f.blocks))
	for i := range objects {
		pool, problems := objects[i].Law()
		f.pools = append(f.pools, pool)
		f.complain(fmt.Sprintf("AddressPool %q", pool.Name), problems)
	}
	for i, p := range f.pools {
		f.complain(fmt.Sprintf("AddressPool %q", p.Name), p.CheckOverlap(f.pools[i+1:]))
	}
	recorded := f.allocations()
	observed, missing, err := cluster.Observation(ctx, c, recorded, progress)
	if err != nil {
		return f, err
	}
	f.missing = append(f.missing, missing...)
	f.observed, f.world = observed, ipam.NewWorld(observed)
	f.judged = make([]ipam.Judgement, len(recorded))
	for i, a := range recorded {
		f.judged[i] = ipam.Judgement{Allocation: a, Verdict: ipam.Judge(a, f.world)}
	}
	return f, nil
}

// listPools reads the pools page by page.
func listPools(ctx context.Context, c client.Reader) ([]v1alpha1.AddressPool, error) {
	var pools []v1alpha1.AddressPool
	for next := ""; ; {
		var list v1alpha1.AddressPoolList
		if err := c.List(ctx, &list, client.Limit(page), client.Continue(next)); err != nil {
			return nil, err
		}
		pools = append(pools, list.Items...)
		if next = list.Continue; next == "" {
			return pools, nil
		}
	}
}

func (f *finding) complain(object string, problems []ipam.Problem) {
	for _, p := range problems {
		f.problems = append(f.problems, recordProblem{object, p.Rule, p.Field, p.Message})
	}
}

// allocations judges the blocks by themselves and returns the hand-outs in them.
func (f *finding) allocations() []ipam.Allocation {
	pools := map[string]ipam.Pool{}
	for _, p := range f.pools {
		pools[p.Name] = p
	}
	for _, b := range f.blocks {
		object := fmt.Sprintf("AddressBlock %q", b.Name)
		pool, ok := pools[b.Pool]
		if !ok {
			f.complain(object, []ipam.Problem{{Rule: ipam.BlockMalformed, Field: "spec.pool", Message: fmt.Sprintf("AddressPool %q does not exist", b.Pool)}})
			continue
		}
		f.complain(object, b.Check(pool))
		empty := b
		empty.Entries, empty.Cooling = nil, nil
		f.complain(object, empty.CheckAdded(empty.Adds(b), pool, time.Time{}))
	}
	return native.Allocations(f.blocks, func(pool string) string { return pools[pool].Network })
}

// leaks are the hand-outs whose owner is gone, or proven to have ended, in the order in which they are stored.
func (f *finding) leaks() []ipam.Judgement {
	return slices.DeleteFunc(slices.Clone(f.judged), func(j ipam.Judgement) bool { return j.Verdict.Disposition == ipam.Keep })
}

// untold says what could not be read.
func (f finding) untold() error {
	return fmt.Errorf("%w: %s", errUntold, strings.Join(f.missing, "; "))
}
