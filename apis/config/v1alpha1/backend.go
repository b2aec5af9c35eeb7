package v1alpha1

// Backends has one field for each IPAM that Oakum knows.
type Backends struct {
	Native      Backend     `json:"native"`
	Whereabouts Whereabouts `json:"whereabouts"`
	Coil        Coil        `json:"coil"`
	Calico      Calico      `json:"calico"`
}

// named lists the backends by their keys in the file, with the rules that can be set for each.
func (b Backends) named() []namedBackend {
	return []namedBackend{
		{"native", b.Native, nativeRules(), true},
		{"whereabouts", b.Whereabouts.Backend, whereaboutsRules(), false},
		{"coil", b.Coil.Backend, coilRules(), false},
		{"calico", b.Calico.Backend, calicoRules(), false},
	}
}

type namedBackend struct {
	name string
	Backend
	known []rule
	// holdsNodes: a Node can be held on its behalf.
	holdsNodes bool
}

// UsualEffect is a rule's effect under ModeEnforce where Backend.Rules does not set it; EffectOff for a backend or a rule
// that is not known.
func UsualEffect(backend, name string) Effect {
	for _, b := range (Backends{}).named() {
		for _, r := range b.known {
			if b.name == backend && r.name == name {
				return r.usual
			}
		}
	}
	return EffectOff
}

// Backend is what can be set for every backend.
type Backend struct {
	// Mode is what Oakum does about this backend's records. Default ModeEnforce for native, ModeObserve for the others.
	Mode Mode `json:"mode"`
	// Rules gives single admission rules another effect than their usual one under ModeEnforce, by the name of the rule.
	// Rules that are policies are known here, so that whoever installs them may follow one file; the manager does not act on them.
	Rules map[string]Effect `json:"rules,omitempty"`
	// PodFinalizers holds Pods until their addresses are free, under ModeEnforce. Default true; without it just the audit
	// releases.
	PodFinalizers bool `json:"podFinalizers"`
}

// Whereabouts is what can be set for Whereabouts.
type Whereabouts struct {
	Backend `json:",inline"`
	// Namespace is where Whereabouts keeps its records. Default kube-system.
	Namespace string `json:"namespace"`
	// DefaultNetwork says that Whereabouts gives pods the addresses of their default network, so that every pod has one
	// of its addresses. The API does not tell. Default false: only pods that name networks for Multus have.
	DefaultNetwork bool `json:"defaultNetwork"`
}

// Coil is what can be set for Coil.
type Coil struct {
	Backend `json:",inline"`
	// RestartCoild evicts the coild of a node under ModeEnforce when that holds a block that nobody uses: coild gives such
	// blocks back when it starts, and no other program may. Default false: they are reported.
	RestartCoild bool `json:"restartCoild"`
}

// Calico is what can be set for Calico. It gives pods the addresses of their default network, so that every pod has some.
type Calico struct {
	Backend `json:",inline"`
}

// Mode is how far Oakum goes.
type Mode string

const (
	// ModeOff leaves the backend alone.
	ModeOff Mode = "Off"
	// ModeObserve finds and reports leaks.
	ModeObserve Mode = "Observe"
	// ModeWarn does as ModeObserve, and warns the client about a write that ModeEnforce would refuse.
	ModeWarn Mode = "Warn"
	// ModeEnforce refuses such writes, holds objects until their addresses are free, and releases what leaked.
	ModeEnforce Mode = "Enforce"
)

// Effect is what becomes of a write that breaks a rule under ModeEnforce.
type Effect string

const (
	// EffectDeny refuses the write.
	EffectDeny Effect = "Deny"
	// EffectWarn admits the write and warns the client.
	EffectWarn Effect = "Warn"
	// EffectOff does not judge the write.
	EffectOff Effect = "Off"
)

// rule is an admission rule whose effect can be set.
type rule struct {
	name string
	// usual is the effect under ModeEnforce if nothing is set.
	usual Effect
	// neverDenied says why EffectDeny is refused; empty where it is not.
	neverDenied string
}

func nativeRules() []rule {
	return []rule{
		{name: "allocation-conflict", usual: EffectDeny},
		{name: "allocation-owner", usual: EffectDeny},
		{name: "allocation-unowned", usual: EffectDeny},
		{name: "block-in-use", usual: EffectDeny},
		{name: "block-malformed", usual: EffectDeny},
		{name: "node-writer", usual: EffectDeny},
		{name: "pool-draining", usual: EffectDeny},
		{
			name: "pool-in-use", usual: EffectWarn,
			neverDenied: "a pool may always be deleted, and goes when its blocks have drained",
		},
		{name: "pool-malformed", usual: EffectDeny},
		{name: "pool-overlap", usual: EffectDeny},
		{name: "pool-shrink", usual: EffectDeny},
		{name: "second-unfilled-block", usual: EffectDeny},
	}
}

func whereaboutsRules() []rule {
	return []rule{
		{
			name: "allocation-unowned", usual: EffectWarn,
			neverDenied: "Whereabouts starts the pod all the same, on an address that no IPPool knows",
		},
		{name: "pool-overlap", usual: EffectWarn},
	}
}

func coilRules() []rule {
	return []rule{
		{name: "pool-overlap", usual: EffectDeny},
		{
			name: "second-unfilled-block", usual: EffectWarn,
			neverDenied: "coild waits for the block, and every other pod of that node and pool waits behind it",
		},
		{name: "stale-block-request", usual: EffectDeny},
	}
}

func calicoRules() []rule {
	return []rule{
		{name: "allocation-unowned", usual: EffectDeny},
		{name: "block-structure", usual: EffectDeny},
		{name: "block-overlap", usual: EffectDeny},
		{name: "pool-in-use", usual: EffectDeny},
		{name: "pool-overlap", usual: EffectDeny},
		{
			name: "second-unfilled-block", usual: EffectWarn,
			neverDenied: "Calico has reasons to claim another block that no record tells, and the pod would not start",
		},
	}
}
