package cli

import (
	"cmp"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/calico"
	"github.com/oakum-dev/oakum/backends/coil"
	lists "github.com/oakum-dev/oakum/backends/foreign"
	"github.com/oakum-dev/oakum/backends/native"
	"github.com/oakum-dev/oakum/backends/whereabouts"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// connection says which cluster a command is about.
type connection struct {
	kubeconfig, context string
	scope               scope
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
	return lists.NewStreams(c, config, calico.V1.Group, calico.V3.Group, whereabouts.GroupVersion.Group, coil.GroupVersion.Group)
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme), whereabouts.AddToScheme(scheme), coil.AddToScheme(scheme), calico.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("registering the API types: %w", err)
	}
	return scheme, nil
}

// page is how many objects are asked for at a time.
const page = 500

// scope says whose records a command is about.
type scope struct {
	// backend is a backend's name; empty means every one whose kinds are installed.
	backend string
	// whereabouts is the namespace of Whereabouts' records.
	whereabouts string
}

// finding is all that a look at the cluster tells.
type finding struct {
	// found are the names of the backends whose kinds are installed, and records their records.
	found   []string
	records *backends.Several
	pools   []pool
	blocks  []ipam.Block
	judged  []ipam.Judgement
	// observed is what was seen of the owners, and world the same in the form in which the law asks it.
	observed ipam.Observation
	world    ipam.World
	// doubted are names of nodes that may be a plugin's own for Nodes that exist.
	doubted map[string]bool
	// problems are breaches of rules in what is stored: written before a rule, or while nobody looked.
	problems []recordProblem
	// missing says what could not be read. What depends on it cannot be told.
	missing []string
}

// pool is a pool of one backend.
type pool struct {
	ipam.Pool
	backend string
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
func gather(ctx context.Context, c client.Client, of scope, progress io.Writer) (finding, error) {
	f := finding{records: &backends.Several{}}
	once := lists.NewOnce(c)
	var recorded []ipam.Allocation
	for _, source := range []struct {
		name string
		kind schema.GroupVersionKind
		read func() ([]ipam.Allocation, error)
	}{
		{native.Name, v1alpha1.SchemeGroupVersion.WithKind("AddressPool"), func() ([]ipam.Allocation, error) { return f.readNative(ctx, c, progress) }},
		{whereabouts.Name, whereabouts.GroupVersion.WithKind("IPPool"), func() ([]ipam.Allocation, error) {
			served := func() bool { return true } // Else the answer says so.
			optional := whereabouts.Optional{NodeSlicePools: served, NetworkAttachmentDefinitions: served}
			f.records.Add(whereabouts.New(nil, c, c, of.whereabouts, optional))
			return f.readForeign(ctx, whereabouts.New(nil, once, c, of.whereabouts, optional), progress)
		}},
		{coil.Name, coil.GroupVersion.WithKind("AddressBlock"), func() ([]ipam.Allocation, error) {
			f.records.Add(coil.New(nil, c, c, coil.Usual()))
			return f.readForeign(ctx, coil.New(nil, once, c, coil.Usual()), progress)
		}},
		{calico.Name, calico.V1.WithKind("IPAMBlock"), func() ([]ipam.Allocation, error) { return f.readCalico(ctx, c, once, calico.V1, progress) }},
		{calico.Name, calico.V3.WithKind("IPAMBlock"), func() ([]ipam.Allocation, error) { return f.readCalico(ctx, c, once, calico.V3, progress) }},
	} {
		if of.backend != "" && of.backend != source.name {
			continue
		}
		switch _, err := c.RESTMapper().RESTMapping(source.kind.GroupKind(), source.kind.Version); {
		case meta.IsNoMatchError(err):
			continue
		case err != nil:
			if err := f.miss(source.name, err); err != nil {
				return f, fmt.Errorf("looking for %s: %w", source.kind.GroupKind(), err)
			}
			continue
		}
		if slices.Contains(f.found, source.name) {
			continue // In one group or the other, never in both.
		}
		f.found = append(f.found, source.name)
		some, err := source.read()
		if err != nil {
			return f, err
		}
		recorded = append(recorded, some...)
	}
	if len(f.found) == 0 && len(f.missing) == 0 {
		f.missing = append(f.missing, "records: the cluster has none of "+cmp.Or(of.backend, "any backend"))
	}
	observed, missing, err := cluster.Observation(ctx, c, recorded, progress)
	if err != nil {
		return f, err
	}
	f.missing = append(f.missing, missing...)
	f.observed, f.world = observed, ipam.NewWorld(observed)
	f.judged = make([]ipam.Judgement, len(recorded))
	judge := func() {
		for i, a := range recorded {
			f.judged[i] = ipam.Judgement{Allocation: a, Verdict: ipam.Judge(a, f.world)}
		}
	}
	judge()
	if f.doubted = f.world.Doubts(f.judged); len(f.doubted) > 0 {
		f.world = f.world.Doubting(f.doubted)
		judge()
	}
	return f, nil
}

// readCalico reads Calico's records in one of its groups, through a reader that lists once.
func (f *finding) readCalico(ctx context.Context, c client.Client, once client.Reader, served schema.GroupVersion, progress io.Writer) ([]ipam.Allocation, error) {
	f.records.Add(calico.New(nil, c, c, served, youngHandle, time.Now))
	return f.readForeign(ctx, calico.New(nil, once, c, served, youngHandle, time.Now), progress)
}

// youngHandle is how old an IPAMHandle must be before the command line touches it.
const youngHandle = 5 * time.Minute

// miss notes what may not be read, and passes on every other error.
func (f *finding) miss(what string, err error) error {
	if apierrors.IsForbidden(err) || meta.IsNoMatchError(err) || errors.Is(err, cluster.ErrNotServed) || apierrors.IsNotFound(err) {
		f.missing = append(f.missing, fmt.Sprintf("%s: %v", what, err))
		return nil
	}
	return err
}

// readNative reads AddressPools and AddressBlocks.
func (f *finding) readNative(ctx context.Context, c client.Client, progress io.Writer) ([]ipam.Allocation, error) {
	records := native.New(c, c, c)
	f.records.Add(records)
	objects, err := listPools(ctx, c)
	if err != nil {
		if err := f.miss("pools", err); err != nil {
			return nil, fmt.Errorf("listing AddressPools: %w", err)
		}
	}
	if f.blocks, err = records.LiveBlocks(ctx, backends.Query{}); err != nil {
		if err := f.miss("blocks", err); err != nil {
			return nil, err
		}
	}
	fmt.Fprintf(progress, "%d pools, %d blocks\n", len(objects), len(f.blocks))
	pools := make([]ipam.Pool, len(objects))
	for i := range objects {
		var problems []ipam.Problem
		pools[i], problems = objects[i].Law()
		f.complain(fmt.Sprintf("AddressPool %q", pools[i].Name), problems)
		f.pools = append(f.pools, pool{pools[i], native.Name})
	}
	for i, p := range pools {
		f.complain(fmt.Sprintf("AddressPool %q", p.Name), p.CheckOverlap(pools[i+1:]))
	}
	return f.allocations(), nil
}

// foreignRecords are the records of another program.
type foreignRecords interface {
	backends.Backend
	backends.Pools
	backends.Inspector
}

// readForeign reads another program's records. Problems come first, since they need the lists in an order of their own.
func (f *finding) readForeign(ctx context.Context, records foreignRecords, progress io.Writer) ([]ipam.Allocation, error) {
	name := records.Name()
	problems, broken := records.Problems(ctx)
	recorded, err := records.Allocations(ctx)
	if err != nil {
		return nil, f.miss(name, err)
	}
	pools, err := records.Pools(ctx)
	if err != nil {
		return recorded, f.miss(name, err)
	}
	fmt.Fprintf(progress, "%d pools, %d hand-outs of %s\n", len(pools), len(recorded), name)
	for i, p := range pools {
		f.pools = append(f.pools, pool{p, name})
		overlaps := p.CheckOverlap(pools[i+1:])
		for j := range overlaps {
			overlaps[j].Field = cmp.Or(map[string]string{whereabouts.Name: "spec.range", calico.Name: "spec.cidr"}[name], overlaps[j].Field)
		}
		f.complain(fmt.Sprintf("%s %q", cmp.Or(p.Kind, "AddressPool"), p.Name), overlaps)
	}
	if broken != nil {
		return recorded, f.miss(name, broken)
	}
	for _, p := range problems {
		f.problems = append(f.problems, recordProblem{fmt.Sprintf("%s %q", p.Record.Kind, p.Record.Name), p.Rule, p.Field, p.Message})
	}
	return recorded, nil
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
		pools[p.Name] = p.Pool
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
	return slices.DeleteFunc(slices.Clone(f.judged), func(j ipam.Judgement) bool { return !j.Verdict.Disposition.Leaked() })
}

// untold says what could not be read.
func (f finding) untold() error {
	return fmt.Errorf("%w: %s", errUntold, strings.Join(f.missing, "; "))
}
