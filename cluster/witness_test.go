package cluster

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestWitnessAsksTheCacheFirst(t *testing.T) {
	podNamed := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "default", Name: name} }
	podUID := func(p *Pod, err error) (string, error) {
		if p == nil {
			return "", err
		}
		return string(p.UID), err
	}
	nodeUID := func(n *Node, err error) (string, error) {
		if n == nil {
			return "", err
		}
		return string(n.UID), err
	}
	questions := map[string]func(context.Context, *scene, string) (string, error){
		"CachedPod": func(_ context.Context, s *scene, name string) (string, error) {
			return podUID(s.CachedPod(podNamed(name)), nil)
		},
		"Pod": func(ctx context.Context, s *scene, name string) (string, error) {
			return podUID(s.Pod(ctx, podNamed(name)))
		},
		"LivePod": func(ctx context.Context, s *scene, name string) (string, error) {
			return podUID(s.LivePod(ctx, podNamed(name)))
		},
		"CachedNode": func(_ context.Context, s *scene, name string) (string, error) {
			return nodeUID(s.CachedNode(name), nil)
		},
		"Node": func(ctx context.Context, s *scene, name string) (string, error) { return nodeUID(s.Node(ctx, name)) },
		"LiveNode": func(ctx context.Context, s *scene, name string) (string, error) {
			return nodeUID(s.LiveNode(ctx, name))
		},
	}
	fire := errors.New("the API server is on fire")
	tests := map[string]struct {
		question, name string
		broken         error
		want, wantErr  string
	}{
		"a pod in the cache is answered from there":           {"Pod", "old", nil, "cached", ""},
		"even while the API server is away":                   {"Pod", "old", fire, "cached", ""},
		"a pod that the cache does not know is read live":     {"Pod", "new", nil, "live", ""},
		"a pod that nobody knows is nil":                      {"Pod", "none", nil, "", ""},
		"a pod that cannot be read is not nil, but an error":  {"Pod", "none", fire, "", "reading pod default/none: the API server is on fire"},
		"a pod in the cache can be read live":                 {"LivePod", "old", nil, "live", ""},
		"a pod that must be read live may fail":               {"LivePod", "old", fire, "", "reading pod default/old: the API server is on fire"},
		"a pod may be asked for in the cache alone":           {"CachedPod", "old", nil, "cached", ""},
		"a new pod is not in the cache":                       {"CachedPod", "new", nil, "", ""},
		"a node in the cache is answered from there":          {"Node", "old", nil, "cached", ""},
		"a node also while the API server is away":            {"Node", "old", fire, "cached", ""},
		"a node that the cache does not know is read live":    {"Node", "new", nil, "live", ""},
		"a node that nobody knows is nil":                     {"Node", "none", nil, "", ""},
		"a node that cannot be read is not nil, but an error": {"Node", "none", fire, "", "reading node none: the API server is on fire"},
		"a node in the cache can be read live":                {"LiveNode", "old", nil, "live", ""},
		"a node that must be read live may fail":              {"LiveNode", "old", fire, "", "reading node old: the API server is on fire"},
		"a node may be asked for in the cache alone":          {"CachedNode", "old", nil, "cached", ""},
		"a new node is not in the cache":                      {"CachedNode", "new", nil, "", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			perform(t, func(t *testing.T, s *scene) {
				s.pods.Add(pod("old", "", "cached"))
				s.nodes.Add(node("old", "cached"))
				for _, o := range []client.Object{pod("old", "", "live"), pod("new", "", "live"), node("old", "live"), node("new", "live")} {
					check(t, s.api.Create(t.Context(), o))
				}
				synctest.Wait()
				s.broken = tt.broken
				got, err := questions[tt.question](t.Context(), s, tt.name)
				if got != tt.want || errorText(err) != tt.wantErr {
					t.Errorf("%s(%s) = %q, %v; want %q, %s", tt.question, tt.name, got, err, tt.want, tt.wantErr)
				}
			})
		})
	}
}

func TestPodsOnANode(t *testing.T) {
	perform(t, func(t *testing.T, s *scene) {
		for _, p := range []*corev1.Pod{pod("web-0", "n1", "u0"), pod("web-1", "n2", "u1"), pod("other/web-0", "n1", "u2"), pod("new", "", "u3")} {
			s.pods.Add(p)
		}
		synctest.Wait()
		got := map[string][]string{}
		for _, n := range []string{"n1", "n2", "n3", ""} {
			for _, p := range s.PodsOn(n) {
				got[n] = append(got[n], p.Namespace+"/"+p.Name)
			}
			slices.Sort(got[n])
		}
		if diff := difference(map[string][]string{"n1": {"default/web-0", "other/web-0"}, "n2": {"default/web-1"}}, got); diff != "" {
			t.Errorf("pods by node (-want +got):\n%s", diff)
		}
	})
}

// A node's absence is counted from when it was first noticed, in time that no adjustment of a clock shortens.
func TestHowLongANodeHasBeenGone(t *testing.T) {
	gone := func(d time.Duration) map[string]time.Duration { return map[string]time.Duration{"n1": d} }
	tests := map[string]struct {
		steps []step
		want  map[string]time.Duration
	}{
		"it counts from the deletion":                         {[]step{nodeIsCached, at(10), nodeIsGone, at(60)}, gone(50 * time.Second)},
		"it counts from the first question":                   {[]step{at(10), ask, at(30), ask, at(60)}, gone(50 * time.Second)},
		"a clock set forward adds nothing":                    {[]step{nodeIsCached, at(10), nodeIsGone, jump(time.Hour), at(60)}, gone(50 * time.Second)},
		"a clock set back takes nothing away":                 {[]step{nodeIsCached, at(10), nodeIsGone, jump(-time.Hour), at(60)}, gone(50 * time.Second)},
		"a deletion that the watch missed counts once seen":   {[]step{nodeIsCached, at(10), watchIsCut, at(60)}, gone(50 * time.Second)},
		"a question that failed is no sign":                   {[]step{at(10), fire, ask, at(60)}, map[string]time.Duration{}},
		"a node that is back in the cache is not missing":     {[]step{at(10), ask, nodeIsCached, at(60)}, map[string]time.Duration{}},
		"a node that is back live is not missing":             {[]step{at(10), ask, nodeIsLive, ask, at(60)}, map[string]time.Duration{}},
		"what is older than a day is forgotten":               {[]step{at(10), ask, at(100000), ask, at(100010)}, gone(10 * time.Second)},
		"a node that goes again counts anew":                  {[]step{at(10), ask, nodeIsCached, at(60), nodeIsGone, at(90)}, gone(30 * time.Second)},
		"a node that goes again unseen counts anew":           {[]step{at(10), ask, nodeIsLive, ask, nodeIsDead, at(60), ask, at(90)}, gone(30 * time.Second)},
		"an answer that was late does not count for the next": {[]step{nodeIsCached, at(10), ask, at(60), nodeIsGone, at(90)}, gone(30 * time.Second)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			perform(t, func(t *testing.T, s *scene) {
				for _, step := range tt.steps {
					step(t, s)
					synctest.Wait()
				}
				if diff := difference(tt.want, s.register.goneFor(s.now.Steady)); diff != "" {
					t.Errorf("nodes gone (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestAround(t *testing.T) {
	named := func(name, ip string) *corev1.Pod { return pod(name, "n2", "u2", fixture.Running(ip)) }
	owner := ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: "web-0", UID: "u1", Node: "n1"}
	ended := ipam.Verdict{
		Disposition: ipam.Free, Reason: ipam.EndReported, Evidence: "E2",
		Detail: "the kubelet reported the end of Pod default/web-0 (uid u1): Succeeded, every container terminated, sandbox down",
	}
	ending := ipam.Verdict{
		Disposition: ipam.Keep, Reason: ipam.Ending, Evidence: "E7",
		Detail: `Pod default/web-0 (uid u1) is going, and the kubelet of node "n1" has not reported its end`,
	}
	fencing := ipam.Verdict{
		Disposition: ipam.Keep, Reason: ipam.NodeFencing, Evidence: "E5",
		Detail: `node "n1" has been gone for 0s, and after 40s that means that the machine is off`,
	}
	fenced := ipam.Verdict{
		Disposition: ipam.Free, Reason: ipam.NodeFenced, Evidence: "E5",
		Detail: `node "n1" has been gone for 41s, and its deletion means that the machine is off`,
	}
	inUse := func(address string) ipam.Verdict {
		return ipam.Verdict{
			Disposition: ipam.Keep, Reason: ipam.InUse, Evidence: "E11", Drift: true,
			Detail: address + " is in use by Pod default/db-0 (uid u2)",
		}
	}
	there := []step{nodeIsCached, nodeIsLive}
	dead := []func(*corev1.Pod){fixture.Running("10.0.0.7"), fixture.Ended}
	tests := map[string]struct {
		pod   []func(*corev1.Pod)
		other *corev1.Pod
		steps []step
		// cached is what follows from Around, live what follows from LiveAround.
		cached, live ipam.Verdict
	}{
		"a pod that has ended holds nothing":                    {dead, nil, there, ended, ended},
		"a pod with another address does not matter":            {dead, named("db-0", "10.0.0.8"), there, ended, ended},
		"another pod that names the address has it":             {dead, named("db-0", "10.0.0.7"), there, inUse("10.0.0.7"), inUse("10.0.0.7")},
		"every address is looked for":                           {dead, named("db-0", "fd00::7"), there, inUse("fd00::7"), inUse("fd00::7")},
		"the pod counts as given, not as the cache has it":      {dead, named("web-0", "10.0.0.7"), there, ended, ended},
		"the node is asked about a pod's end":                   {nil, nil, there, ending, ending},
		"a node that nobody knows is gone":                      {nil, nil, nil, fencing, fencing},
		"a node that has gone is in the cache for a while":      {nil, nil, []step{nodeIsCached}, ending, fencing},
		"a node that has been gone for long enough is off":      {nil, nil, []step{at(1), ask, at(42)}, fenced, fenced},
		"a node that has been gone for an hour's jump is not":   {nil, nil, []step{ask, jump(time.Hour)}, fencing, fencing},
		"a node that the cache does not know yet is asked live": {nil, nil, []step{nodeIsLive}, ending, ending},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			perform(t, func(t *testing.T, s *scene) {
				if tt.other != nil {
					s.pods.Add(tt.other)
				}
				for _, step := range tt.steps {
					step(t, s)
				}
				synctest.Wait()
				p := Observe(pod("web-0", "n1", "u1", tt.pod...))
				p.DeletionTimestamp = new(metav1.Now())
				record := ipam.Allocation{Handle: "h1", Owner: owner, Places: []ipam.Place{{Addresses: addrs("10.0.0.6")}, {Addresses: addrs("10.0.0.7", "fd00::7")}}}
				for name, q := range map[string]struct {
					around func(context.Context, *Pod, []ipam.Allocation) (ipam.World, error)
					want   ipam.Verdict
				}{"Around": {s.Around, tt.cached}, "LiveAround": {s.LiveAround, tt.live}} {
					world, err := q.around(t.Context(), p, []ipam.Allocation{record})
					check(t, err)
					if diff := difference(q.want, ipam.Judge(record, world)); diff != "" {
						t.Errorf("%s: verdict (-want +got):\n%s", name, diff)
					}
				}
			})
		})
	}
}

// A node's tunnel may have the address of a pod that has ended.
func TestAroundSeesTheNodesThatNameAnAddress(t *testing.T) {
	perform(t, func(t *testing.T, s *scene) {
		s.nodes.Add(node("n2", "uid", noted(map[string]string{"projectcalico.org/IPv4IPIPTunnelAddr": "10.0.0.7"})))
		synctest.Wait()
		record := ipam.Allocation{Handle: "h1", Owner: ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: "web-0", UID: "u0"}, Places: []ipam.Place{{Addresses: addrs("10.0.0.7")}}}
		world, err := s.Around(t.Context(), Observe(pod("web-0", "n1", "u1")), []ipam.Allocation{record})
		check(t, err)
		want := ipam.Verdict{Disposition: ipam.Keep, Reason: ipam.InUse, Evidence: "E11", Detail: "10.0.0.7 is in use by Node n2 (uid uid)", Drift: true}
		if diff := difference(want, ipam.Judge(record, world)); diff != "" {
			t.Errorf("verdict (-want +got):\n%s", diff)
		}
	})
}

// The record may name another node than the pod does, and the pod may have been replaced: then its node speaks.
func TestAroundAsksTheNodeThatTheRecordNames(t *testing.T) {
	perform(t, func(t *testing.T, s *scene) {
		s.nodes.Add(node("n2", "uid", fixture.NotReady))
		synctest.Wait()
		record := ipam.Allocation{Handle: "h1", Owner: ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: "web-0", UID: "u0", Node: "n2"}}
		world, err := s.Around(t.Context(), Observe(pod("web-0", "", "u1")), []ipam.Allocation{record})
		check(t, err)
		want := ipam.Verdict{
			Disposition: ipam.Keep, Reason: ipam.NodeNotReady, Evidence: "E10b",
			Detail: `Pod default/web-0 (uid u0) was replaced by uid u1, and node "n2" is not ready: the sandbox may still run`,
		}
		if diff := difference(want, ipam.Judge(record, world)); diff != "" {
			t.Errorf("verdict (-want +got):\n%s", diff)
		}
	})
}

func TestAroundDoesNotTakeAFailureForAnAbsence(t *testing.T) {
	perform(t, func(t *testing.T, s *scene) {
		fire(t, s)
		for name, around := range map[string]func(context.Context, *Pod, []ipam.Allocation) (ipam.World, error){"Around": s.Around, "LiveAround": s.LiveAround} {
			_, err := around(t.Context(), Observe(pod("web-0", "n1", "u1")), nil)
			if want := "reading node n1: the API server is on fire"; errorText(err) != want {
				t.Errorf("%s: the error is %v, want %s", name, err, want)
			}
		}
	})
}

func TestTheSystemClockKeepsTwoTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, start := SystemClock(), time.Now()
		<-time.After(time.Hour)
		want := ipam.Moment{Wall: start.Add(time.Hour).Round(0), Steady: time.Hour}
		// Compared as they are: a wall clock's time must not carry the steady one along.
		if got := clock(); got != want {
			t.Errorf("an hour later it is %+v, want %+v", got, want)
		}
	})
}

func TestPodCIDRs(t *testing.T) {
	perform(t, func(t *testing.T, s *scene) {
		s.nodes.Add(node("n1", "uid", func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.244.1.0/24", "fd00:244:1::/64"} }))
		synctest.Wait()
		want := []ipam.Holding{
			{Holder: `Node "n1"`, Prefix: netip.MustParsePrefix("10.244.1.0/24")},
			{Holder: `Node "n1"`, Prefix: netip.MustParsePrefix("fd00:244:1::/64")},
		}
		if diff := difference(want, s.PodCIDRs()); diff != "" {
			t.Errorf("holdings (-want +got):\n%s", diff)
		}
	})
}

func TestOther(t *testing.T) {
	service := func(name string) ipam.Owner {
		return ipam.Owner{Kind: ipam.OwnerService, Namespace: "default", Name: name}
	}
	machine := ipam.Owner{Kind: ipam.OwnerVirtualMachine, Namespace: "default", Name: "db"}
	tests := map[string]struct {
		owner   ipam.Owner
		broken  error
		want    *ipam.Presence
		wantErr string
	}{
		"a service is told by its UID":           {service("web"), nil, &ipam.Presence{UID: "s1"}, ""},
		"a service that is being deleted exists": {service("old"), nil, &ipam.Presence{UID: "s0", Terminating: true}, ""},
		"a service that is not there":            {service("none"), nil, nil, ""},
		"a virtual machine is told by its UID":   {machine, nil, &ipam.Presence{UID: "v1"}, ""},
		"where KubeVirt is not, nobody can tell": {
			machine, &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "kubevirt.io", Kind: "VirtualMachine"}}, nil,
			"looking for VirtualMachine default/db: the cluster serves no such objects",
		},
		"a failure is not an absence": {service("web"), errors.New("the API server is on fire"), nil, "looking for Service default/web: the API server is on fire"},
		"what has no object is not looked for": {
			ipam.Owner{Kind: ipam.OwnerExternal, Name: "router"}, nil, nil, "looking for External router: nobody here can tell about owners of that kind",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			perform(t, func(t *testing.T, s *scene) {
				db := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", UID: "v1"}}
				db.SetGroupVersionKind(schema.GroupVersionKind{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachine"})
				old := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "old", UID: "s0", Finalizers: []string{"example.org/guard"}}}
				for _, o := range []client.Object{db, old, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "s1"}}} {
					check(t, s.api.Create(t.Context(), o))
				}
				check(t, s.api.Delete(t.Context(), old))
				s.broken = tt.broken
				got, err := s.Other(t.Context(), tt.owner)
				if diff := difference(tt.want, got); diff != "" || errorText(err) != tt.wantErr {
					t.Errorf("Other(%s): the error is %v, want %s; (-want +got):\n%s", tt.owner, err, tt.wantErr, diff)
				}
			})
		})
	}
}

func TestNewWitnessNeedsInformers(t *testing.T) {
	tests := map[string]struct {
		cache *informers
		want  string
	}{
		"that can be made":    {&informers{err: errors.New("no such kind")}, ": no such kind"},
		"that can be indexed": {&informers{}, ": the cache's informer has no index"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := NewWitness(t.Context(), tt.cache, nil, SystemClock(), Settings{})
			if got := errorText(err); got != "watching *v1.Pod"+tt.want && got != "watching *v1.Node"+tt.want {
				t.Errorf("the error is %v, want one that ends in %s", err, tt.want)
			}
		})
	}
}

// A cache may transform an object twice, and keeps tombstones of those whose end it missed.
func TestSlimLeavesAloneWhatItDoesNotKnow(t *testing.T) {
	for object, settings := range Slim() {
		for name, o := range map[string]any{
			"a pod that was reduced before":  Observe(fixture.Pod("web-0", "n1")),
			"a node that was reduced before": ObserveNode(fixture.Node("n1")),
			"a tombstone":                    toolscache.DeletedFinalStateUnknown{Key: "default/web-0"},
		} {
			got, err := settings.Transform(o)
			check(t, err)
			if got != o {
				t.Errorf("the transform of %T makes %v of %s", object, got, name)
			}
		}
	}
}
