package certs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/ipam"
)

// clock is set by hand.
type clock struct {
	mu  sync.RWMutex
	now time.Time
}

func (c *clock) Moment() ipam.Moment {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return ipam.Moment{Wall: c.now, Steady: c.now.Sub(noon())}
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func noon() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

// store is what of an API server a Seal needs: one Secret, and webhook configurations by name.
type store struct {
	client.Client
	mu         sync.Mutex
	version    int
	secret     *corev1.Secret
	mutating   map[string]*admissionregistrationv1.MutatingWebhookConfiguration
	validating map[string]*admissionregistrationv1.ValidatingWebhookConfiguration
	// down are the operations that fail, such as "get Secret".
	down map[string]bool
	// before is called before an operation, once.
	before map[string]func()
	// writes counts those that were done.
	writes int
}

func newStore() *store {
	s := &store{
		mutating:   map[string]*admissionregistrationv1.MutatingWebhookConfiguration{},
		validating: map[string]*admissionregistrationv1.ValidatingWebhookConfiguration{},
		down:       map[string]bool{}, before: map[string]func(){},
	}
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{}
	mutating.Name = "oakum"
	for _, service := range []string{"oakum", "other"} {
		mutating.Webhooks = append(mutating.Webhooks, admissionregistrationv1.MutatingWebhook{ClientConfig: calls(service)})
	}
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	validating.Name = "oakum-coil"
	url := "https://127.0.0.1:9443"
	validating.Webhooks = []admissionregistrationv1.ValidatingWebhook{
		{ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url}},
		{ClientConfig: calls("oakum")},
	}
	s.mutating["oakum"], s.validating["oakum-coil"] = mutating, validating
	s.stamp(mutating)
	s.stamp(validating)
	return s
}

func calls(service string) admissionregistrationv1.WebhookClientConfig {
	return admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "oakum-system", Name: service}}
}

func (s *store) stamp(o client.Object) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
}

// ask is how every operation begins.
func (s *store) ask(verb string, o client.Object) (unlock func(), err error) {
	op := verb + " " + kind(o)
	s.mu.Lock()
	hook := s.before[op]
	delete(s.before, op)
	s.mu.Unlock()
	if hook != nil {
		hook()
	}
	s.mu.Lock()
	if s.down[op] {
		s.mu.Unlock()
		return nil, errors.New("the server is busy")
	}
	return s.mu.Unlock, nil
}

func kind(o client.Object) string {
	if _, ok := o.(*corev1.Secret); ok {
		return "Secret"
	}
	return "Registration"
}

func (s *store) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	unlock, err := s.ask("get", o)
	if err != nil {
		return err
	}
	defer unlock()
	switch o := o.(type) {
	case *corev1.Secret:
		if s.secret != nil {
			s.secret.DeepCopyInto(o)
			return nil
		}
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		if found := s.mutating[key.Name]; found != nil {
			found.DeepCopyInto(o)
			return nil
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		if found := s.validating[key.Name]; found != nil {
			found.DeepCopyInto(o)
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, key.Name)
}

func (s *store) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	unlock, err := s.ask("create", o)
	if err != nil {
		return err
	}
	defer unlock()
	if s.secret != nil {
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "secrets"}, o.GetName())
	}
	s.put(o.(*corev1.Secret))
	return nil
}

func (s *store) Update(_ context.Context, o client.Object, _ ...client.UpdateOption) error {
	unlock, err := s.ask("update", o)
	if err != nil {
		return err
	}
	defer unlock()
	if s.secret == nil || s.secret.ResourceVersion != o.GetResourceVersion() {
		return apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, o.GetName(), errors.New("it is another version"))
	}
	s.put(o.(*corev1.Secret))
	return nil
}

func (s *store) put(o *corev1.Secret) {
	s.writes++
	s.stamp(o)
	s.secret = o.DeepCopy()
}

// Patch takes the JSON patches that a Seal writes, and no others.
func (s *store) Patch(_ context.Context, o client.Object, p client.Patch, _ ...client.PatchOption) error {
	unlock, err := s.ask("patch", o)
	if err != nil {
		return err
	}
	defer unlock()
	text, err := p.Data(o)
	if err != nil {
		return err
	}
	var ops []struct {
		Op, Path string
		Value    json.RawMessage
	}
	if err := json.Unmarshal(text, &ops); err != nil {
		return err
	}
	stored := s.registration(o)
	if version := strconv.Quote(stored.GetResourceVersion()); ops[0].Path != "/metadata/resourceVersion" || string(ops[0].Value) != version {
		return apierrors.NewConflict(schema.GroupResource{Resource: "registrations"}, o.GetName(), errors.New("it is another version"))
	}
	for _, op := range ops[1:] {
		var i int
		var bundle []byte
		if _, err := fmt.Sscanf(op.Op+" "+op.Path, "add /webhooks/%d/clientConfig/caBundle", &i); err != nil {
			return err
		}
		if err := json.Unmarshal(op.Value, &bundle); err != nil {
			return err
		}
		configs(stored)[i].CABundle = bundle
	}
	s.writes++
	s.stamp(stored)
	return nil
}

func (s *store) registration(o client.Object) client.Object {
	if _, ok := o.(*admissionregistrationv1.MutatingWebhookConfiguration); ok {
		return s.mutating[o.GetName()]
	}
	return s.validating[o.GetName()]
}

func configs(o client.Object) (all []*admissionregistrationv1.WebhookClientConfig) {
	switch o := o.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		for i := range o.Webhooks {
			all = append(all, &o.Webhooks[i].ClientConfig)
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		for i := range o.Webhooks {
			all = append(all, &o.Webhooks[i].ClientConfig)
		}
	}
	return all
}

// trusted are the two bundles with which the API server calls our Service.
func (s *store) trusted() [2][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return [2][]byte{s.mutating["oakum"].Webhooks[0].ClientConfig.CABundle, s.validating["oakum-coil"].Webhooks[1].ClientConfig.CABundle}
}

// trust has somebody else write one of them.
func (s *store) trust(i int, bundle []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := []client.Object{s.mutating["oakum"], s.validating["oakum-coil"]}[i]
	configs(o)[i].CABundle = bundle
	s.stamp(o)
}

// tamper has somebody else change the Secret.
func (s *store) tamper(change func(data map[string][]byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s.secret.Data)
	s.stamp(s.secret)
}

// restore has every operation succeed.
func (s *store) restore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.down)
}

func (s *store) deleteSecret() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secret = nil
}

// seal returns a Seal that has just started.
func (s *store) seal(c *clock, log logr.Logger) *Seal {
	return &Seal{
		Namespace: "oakum-system", Secret: "oakum-webhook-ca", Service: "oakum",
		Mutating: []string{"oakum", "oakum-pods"}, Validating: []string{"oakum", "oakum-coil"},
		Live: s, Client: s, Clock: c.Moment, Log: log,
	}
}

// round goes round once, which must leave nothing to do.
func (s *Seal) mustRound(t *testing.T) {
	t.Helper()
	if err := s.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// logTo returns a logger that keeps what it is told.
func logTo(lines *[]string) logr.Logger {
	return funcr.New(func(_, args string) { *lines = append(*lines, args) }, funcr.Options{})
}
