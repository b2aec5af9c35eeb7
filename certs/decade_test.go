package certs

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
)

// decade is ten years of three replicas and two registrations, in which everything goes wrong that one replica can mend.
type decade struct {
	*store
	t        *testing.T
	random   *rand.Rand
	clock    *clock
	replicas []*Seal
	// views are the bundles that some API server may still go by, for each registration.
	views [2][]view
	// signers are the CAs that have signed what was served.
	signers map[string]bool
	// verified are certificates and bundles that are known to agree, until the certificate expires.
	verified map[string]time.Time
	history  []string
}

// view is a bundle that was registered.
type view struct {
	bundle []byte
	// until is when it was replaced; zero for the one that is registered.
	until time.Time
	// vandal: somebody else wrote it.
	vandal bool
}

// lag is how much later than others an API server may hear of a bundle.
const lag = 5 * time.Minute

// TestADecade looks after every single round at what each replica serves: an API server trusts it whose clock is up to
// half an hour wrong, and which has heard of the latest bundle or goes by one that was replaced not long ago.
func TestADecade(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			d := &decade{
				store: newStore(), t: t, random: rand.New(rand.NewPCG(seed, 0)), clock: &clock{now: noon()}, signers: map[string]bool{},
				verified: map[string]time.Time{},
			}
			for range 3 {
				d.replicas = append(d.replicas, d.store.seal(d.clock, logr.Discard()))
			}
			for end := noon().AddDate(10, 0, 0); d.clock.now.Before(end) && !t.Failed(); {
				d.step()
			}
			if t.Failed() {
				t.Log(d.history[max(0, len(d.history)-30):])
			}
			if len(d.signers) < 14 {
				t.Errorf("%d CAs have signed in ten years", len(d.signers))
			}
		})
	}
}

// step has something happen, lets the replicas go round a few times, and then lets time pass.
func (d *decade) step() {
	both := func() { d.vandalise(); d.restart() }
	[]func(){func() {}, d.restart, d.vandalise, both, d.outage, d.restore}[d.random.IntN(6)]()
	for range 2 + d.random.IntN(2) {
		d.pass(interval)
		for _, i := range d.random.Perm(len(d.replicas)) {
			_ = d.replicas[i].Round(d.t.Context()) // In an outage it fails.
			d.see(false)
			d.check()
		}
	}
	if !d.down["patch Registration"] && !d.down["get Registration"] && !d.down["get Secret"] && !d.down["update Secret"] && !d.down["create Secret"] {
		d.whole()
	}
	passes := []time.Duration{0, 8 * time.Minute, time.Hour, 5 * day, 5 * day}
	if len(d.down) > 0 {
		passes = passes[:3]
	}
	d.pass(passes[d.random.IntN(len(passes))])
	d.check()
}

func (d *decade) note(format string, args ...any) {
	d.history = append(d.history, d.clock.now.Format(time.RFC3339)+" "+fmt.Sprintf(format, args...)+"\n")
}

func (d *decade) pass(by time.Duration) { d.clock.pass(by) }

// restart replaces one replica, which forgets everything.
func (d *decade) restart() {
	i := d.random.IntN(len(d.replicas))
	d.note("replica %d restarts", i)
	d.replicas[i] = d.store.seal(d.clock, logr.Discard())
}

// vandalise breaks what others than the replicas can write.
func (d *decade) vandalise() {
	if d.secret == nil || len(d.down) > 0 {
		return
	}
	switch d.random.IntN(4) {
	case 0:
		d.note("the Secret is deleted")
		d.deleteSecret()
	case 1:
		d.note("the Secret is corrupted")
		d.tamper(func(data map[string][]byte) {
			for key := range data {
				switch d.random.IntN(3) {
				case 0:
					delete(data, key)
				case 1:
					data[key] = data[key][:d.random.IntN(len(data[key])+1)]
				}
			}
		})
	case 2:
		d.note("a bundle is emptied")
		d.trust(d.random.IntN(2), nil)
		d.see(true)
	case 3:
		d.note("an old bundle is applied")
		i := d.random.IntN(2)
		d.trust(i, d.views[i][d.random.IntN(len(d.views[i]))].bundle)
		d.see(true)
	}
}

// outage has some operation fail from now on.
func (d *decade) outage() {
	op := []string{"get Secret", "create Secret", "update Secret", "get Registration", "patch Registration"}[d.random.IntN(5)]
	if d.secret != nil && !slices.ContainsFunc(d.views[:], func(v []view) bool { return len(v) == 0 || v[len(v)-1].vandal }) {
		d.note("%s fails", op)
		d.down[op] = true
	}
}

func (d *decade) restore() {
	d.note("nothing fails")
	d.store.restore()
}

// see takes note of bundles that were written, and forgets those that nobody goes by any more.
func (d *decade) see(vandal bool) {
	for i, bundle := range d.trusted() {
		views := slices.DeleteFunc(d.views[i], func(v view) bool { return !v.until.IsZero() && d.clock.now.Sub(v.until) > lag })
		if n := len(views); n == 0 || !bytes.Equal(views[n-1].bundle, bundle) {
			if n > 0 {
				views[n-1].until = d.clock.now
			}
			views = append(views, view{bundle: bundle, vandal: vandal || len(bundle) == 0})
		}
		d.views[i] = views
	}
}

// check looks at what every replica serves.
func (d *decade) check() {
	for r, replica := range d.replicas {
		cert, err := replica.Certificate()
		if err != nil {
			continue // It is not ready, so nobody calls it.
		}
		d.signers[string(cert.Leaf.AuthorityKeyId)] = true
		for i, views := range d.views {
			for _, v := range views {
				if stale := !v.until.IsZero() && d.clock.now.Sub(v.until) > lag; !stale && !v.vandal {
					d.checkOne(r, i, cert, v)
				}
			}
		}
	}
}

func (d *decade) checkOne(replica, registration int, cert *tls.Certificate, v view) {
	now := d.clock.now.Add(time.Duration(d.random.IntN(61)-30) * time.Minute)
	key := string(cert.Leaf.Raw) + string(v.bundle)
	if now.Before(d.verified[key]) && now.After(cert.Leaf.NotBefore) {
		return
	}
	if err := verify(cert, v.bundle, now); err != nil {
		d.t.Errorf("%s: registration %d with replica %d: %v", d.clock.now.Format(time.RFC3339), registration, replica, err)
	}
	d.verified[key] = cert.Leaf.NotAfter // No CA signs for longer than it is valid.
}

// whole wants everything mended after the replicas went round.
func (d *decade) whole() {
	if d.secret == nil {
		d.t.Errorf("%s: there is no Secret", d.clock.now)
		return
	}
	found, problems := decode(d.secret.Data)
	if len(problems) > 0 || len(found) == 0 {
		d.t.Errorf("%s: the Secret has %d CAs and problems %v", d.clock.now, len(found), problems)
	}
	for i, bundle := range d.trusted() {
		if !bytes.Equal(bundle, encodeCertificates(newestFirst(found)...)) {
			d.t.Errorf("%s: the bundle of registration %d is not that of the Secret", d.clock.now, i)
		}
	}
}
