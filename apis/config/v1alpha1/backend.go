package v1alpha1

// Backends has one field for each IPAM that Oakum knows.
type Backends struct {
	Native Backend `json:"native"`
}

// named lists the backends by their keys in the file, with the rules that can be set for each.
func (b Backends) named() []namedBackend {
	return []namedBackend{
		{"native", b.Native, nativeRules()},
	}
}

type namedBackend struct {
	name string
	Backend
	known []rule
}

// Backend is what can be set for every backend.
type Backend struct {
	// Mode is what Oakum does about this backend's records. Default ModeEnforce.
	Mode Mode `json:"mode"`
	// Rules gives single admission rules another effect than their usual one under ModeEnforce, by the name of the rule.
	Rules map[string]Effect `json:"rules,omitempty"`
	// PodFinalizers holds Pods until their addresses are free, under ModeEnforce. Default true; without it just the audit
	// releases.
	PodFinalizers bool `json:"podFinalizers"`
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
	// neverDenied says why EffectDeny is refused; empty where it is not.
	neverDenied string
}

func nativeRules() []rule {
	return []rule{
		{name: "allocation-conflict"},
		{name: "allocation-owner"},
		{name: "allocation-unowned"},
		{name: "block-malformed"},
		{name: "pool-draining"},
		{name: "pool-in-use", neverDenied: "a pool may always be deleted, and goes when its blocks have drained"},
		{name: "pool-malformed"},
		{name: "pool-overlap"},
		{name: "pool-shrink"},
		{name: "second-unfilled-block"},
	}
}
