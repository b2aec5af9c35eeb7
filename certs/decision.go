package certs

import (
	"cmp"
	"crypto/x509"
	"slices"
	"time"

	"github.com/oakum-dev/oakum/ipam"
)

// settle is for how long every registration has had a CA before anything is signed with it: the time that an API server
// may take to hear of it.
const settle = 10 * time.Minute

// trust tells, by their IDs, since when every registration has had a CA, in steady time. One that some registration lacks
// is not in it.
type trust map[string]time.Duration

// after returns the trust when registrations were seen to have these bundles. One that has none of the CAs says nothing:
// no certificate would be trusted there.
func (t trust) after(held []Authority, bundles [][]*x509.Certificate, now time.Duration) trust {
	next := trust{}
	for _, a := range held {
		since, known := t[a.ID()]
		if !known {
			since = now
		}
		if !slices.ContainsFunc(bundles, func(b []*x509.Certificate) bool { return hasAny(b, held) && !has(b, a) }) {
			next[a.ID()] = since
		}
	}
	return next
}

func hasAny(bundle []*x509.Certificate, held []Authority) bool {
	return slices.ContainsFunc(held, func(a Authority) bool { return has(bundle, a) })
}

func has(bundle []*x509.Certificate, a Authority) bool {
	return slices.ContainsFunc(bundle, a.Cert.Equal)
}

// Decision is what becomes of the CAs that are known.
type Decision struct {
	// Keep are those that belong in the Secret and in every bundle, newest first.
	Keep []Authority
	// Due: a new one must be made.
	Due bool
	// Signer is the one that signs. It is nil if none can.
	Signer *Authority
}

// Decide says what becomes of the CAs. The newest signs as soon as it has been trusted for long enough; before that, the
// one that has been trusted for the longest time. Of several, as who has just started sees them, it is the oldest that lasts.
func Decide(held []Authority, t trust, now ipam.Moment) Decision {
	d := Decision{Due: true}
	for _, a := range newestFirst(held) {
		if now.Wall.Before(a.Cert.NotAfter) {
			d.Keep = append(d.Keep, a)
		}
	}
	trusted := func(a *Authority) time.Duration {
		if since, known := t[a.ID()]; known {
			return now.Steady - since
		}
		return -1
	}
	for i := range d.Keep {
		a := &d.Keep[i]
		if !a.signs(now.Wall) {
			continue
		}
		d.Due = d.Due && used(a.Cert, now.Wall)
		if d.Signer == nil || trusted(d.Signer) < settle && (trusted(a) > trusted(d.Signer) || trusted(a) == trusted(d.Signer) && a.lasts(now.Wall)) {
			d.Signer = a
		}
	}
	return d
}

// newestFirst sorts CAs, in an order that every replica finds.
func newestFirst(held []Authority) []Authority {
	return slices.SortedFunc(slices.Values(held), func(a, b Authority) int {
		return cmp.Or(b.Cert.NotBefore.Compare(a.Cert.NotBefore), cmp.Compare(a.ID(), b.ID()))
	})
}
