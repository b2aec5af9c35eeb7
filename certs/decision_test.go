package certs

import (
	"crypto/x509"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oakum-dev/oakum/ipam"
)

const day = 24 * time.Hour

func TestDecide(t *testing.T) {
	made := map[string]Authority{}
	for name, age := range map[string]time.Duration{
		"new": 0, "one day": day, "seven months": 213 * day, "eight months": 244 * day, "ten months": 304 * day,
		"last week": 360 * day, "last hour": 365*day - 30*time.Minute, "expired": 366 * day, "tomorrow": -day,
	} {
		a, err := newAuthority(noon().Add(-age))
		if err != nil {
			t.Fatal(err)
		}
		made[name] = a
	}
	name := func(a Authority) string {
		for name, m := range made {
			if m.Cert.Equal(a.Cert) {
				return name
			}
		}
		return "unknown"
	}
	type decision struct {
		Keep   []string
		Due    bool
		Signer string
	}
	tests := map[string]struct {
		held []string
		// trusted is for how long all have trusted a CA.
		trusted map[string]time.Duration
		want    decision
	}{
		"none: one is due":                 {nil, nil, decision{Due: true}},
		"a new one alone signs at once":    {[]string{"new"}, nil, decision{[]string{"new"}, false, "new"}},
		"after two thirds, another is due": {[]string{"eight months"}, nil, decision{[]string{"eight months"}, true, "eight months"}},
		"not before":                       {[]string{"seven months"}, nil, decision{[]string{"seven months"}, false, "seven months"}},
		"a successor that nobody trusts yet does not sign": {
			[]string{"new", "eight months"},
			map[string]time.Duration{"eight months": time.Hour},
			decision{[]string{"new", "eight months"}, false, "eight months"},
		},
		"nor one that has been trusted for nine minutes": {
			[]string{"new", "eight months"},
			map[string]time.Duration{"new": 9 * time.Minute, "eight months": time.Hour},
			decision{[]string{"new", "eight months"}, false, "eight months"},
		},
		"after ten it does": {
			[]string{"new", "eight months"},
			map[string]time.Duration{"new": 10 * time.Minute, "eight months": time.Hour},
			decision{[]string{"new", "eight months"}, false, "new"},
		},
		"who has just started lets the oldest sign": {
			[]string{"one day", "ten months", "eight months"},
			map[string]time.Duration{"one day": 0, "eight months": 0, "ten months": 0},
			decision{[]string{"one day", "eight months", "ten months"}, false, "ten months"},
		},
		"but not in its last week": {
			[]string{"one day", "last week"},
			map[string]time.Duration{"one day": 0, "last week": 0},
			decision{[]string{"one day", "last week"}, false, "one day"},
		},
		"unless it alone is trusted": {
			[]string{"new", "last week"},
			map[string]time.Duration{"last week": 0},
			decision{[]string{"new", "last week"}, false, "last week"},
		},
		"what is trusted signs rather than what is old": {
			[]string{"one day", "ten months"},
			map[string]time.Duration{"one day": 0},
			decision{[]string{"one day", "ten months"}, false, "one day"},
		},
		"of those that are settled the newest signs": {
			[]string{"one day", "ten months"},
			map[string]time.Duration{"one day": time.Hour, "ten months": day},
			decision{[]string{"one day", "ten months"}, false, "one day"},
		},
		"in its last hour none signs, but what it has signed stays trusted": {
			[]string{"last hour", "new"},
			map[string]time.Duration{"last hour": time.Hour},
			decision{[]string{"new", "last hour"}, false, "new"},
		},
		"an expired one goes":                     {[]string{"expired"}, nil, decision{Due: true}},
		"one of tomorrow stays, and is no excuse": {[]string{"tomorrow"}, nil, decision{[]string{"tomorrow"}, true, ""}},
		"nor does it sign": {
			[]string{"tomorrow", "one day"},
			map[string]time.Duration{"tomorrow": time.Hour, "one day": time.Hour},
			decision{[]string{"tomorrow", "one day"}, false, "one day"},
		},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			var held []Authority
			for _, name := range tt.held {
				held = append(held, made[name])
			}
			known := trust{}
			for name, long := range tt.trusted {
				known[made[name].ID()] = day - long
			}
			d := Decide(held, known, ipam.Moment{Wall: noon(), Steady: day})
			got := decision{Due: d.Due}
			for _, a := range d.Keep {
				got.Keep = append(got.Keep, name(a))
			}
			if d.Signer != nil {
				got.Signer = name(*d.Signer)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTrust(t *testing.T) {
	var held []Authority
	for range 2 {
		a, err := newAuthority(noon())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, a)
	}
	foreign, err := newAuthority(noon())
	if err != nil {
		t.Fatal(err)
	}
	a, b := held[0], held[1]
	bundle := func(all ...Authority) []*x509.Certificate {
		var certs []*x509.Certificate
		for _, a := range all {
			certs = append(certs, a.Cert)
		}
		return certs
	}
	tests := map[string]struct {
		before  trust
		bundles [][]*x509.Certificate
		want    trust
	}{
		"where nothing is registered, all are trusted from now on": {nil, nil, trust{a.ID(): time.Hour, b.ID(): time.Hour}},
		"what every bundle has is trusted, since it was first seen": {
			trust{a.ID(): time.Minute}, [][]*x509.Certificate{bundle(a, b), bundle(b, a)}, trust{a.ID(): time.Minute, b.ID(): time.Hour},
		},
		"what one of them lacks is not": {
			trust{a.ID(): time.Minute, b.ID(): time.Minute}, [][]*x509.Certificate{bundle(a, b), bundle(a)}, trust{a.ID(): time.Minute},
		},
		"an empty bundle says nothing": {
			trust{a.ID(): time.Minute, b.ID(): time.Minute}, [][]*x509.Certificate{nil, bundle(a, b)}, trust{a.ID(): time.Minute, b.ID(): time.Minute},
		},
		"nor does one of somebody else's": {trust{a.ID(): time.Minute}, [][]*x509.Certificate{bundle(foreign)}, trust{a.ID(): time.Minute, b.ID(): time.Hour}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.before.after(held, slices.Clone(tt.bundles), time.Hour)); diff != "" {
				t.Errorf("trust (-want +got):\n%s", diff)
			}
		})
	}
}
