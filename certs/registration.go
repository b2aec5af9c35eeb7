package certs

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"

	"gomodules.xyz/jsonpatch/v2"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// registration is a webhook configuration, with those of its clientConfigs that name our Service.
type registration struct {
	client.Object
	configs map[int]admissionregistrationv1.WebhookClientConfig
}

// registered reads the webhook configurations that exist.
func (s *Seal) registered(ctx context.Context) ([]registration, error) {
	var found []registration
	add := func(object client.Object, configs func() []admissionregistrationv1.WebhookClientConfig) error {
		err := s.Live.Get(ctx, client.ObjectKeyFromObject(object), object)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading webhook configuration %s: %w", object.GetName(), err)
		}
		if err == nil {
			found = append(found, registration{object, s.calling(configs())})
		}
		return nil
	}
	for _, name := range s.Mutating {
		object := &admissionregistrationv1.MutatingWebhookConfiguration{}
		object.Name = name
		if err := add(object, func() (all []admissionregistrationv1.WebhookClientConfig) {
			for _, w := range object.Webhooks {
				all = append(all, w.ClientConfig)
			}
			return all
		}); err != nil {
			return nil, err
		}
	}
	for _, name := range s.Validating {
		object := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		object.Name = name
		if err := add(object, func() (all []admissionregistrationv1.WebhookClientConfig) {
			for _, w := range object.Webhooks {
				all = append(all, w.ClientConfig)
			}
			return all
		}); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// calling returns those of the clientConfigs that name our Service, by where they stand.
func (s *Seal) calling(all []admissionregistrationv1.WebhookClientConfig) map[int]admissionregistrationv1.WebhookClientConfig {
	found := map[int]admissionregistrationv1.WebhookClientConfig{}
	for i, c := range all {
		if c.Service != nil && c.Service.Namespace == s.Namespace && c.Service.Name == s.Service {
			found[i] = c
		}
	}
	return found
}

// bundles returns what the registrations trust; it is not nil.
func bundles(registered []registration) [][]*x509.Certificate {
	all := [][]*x509.Certificate{}
	for _, r := range registered {
		for _, c := range r.configs {
			all = append(all, decodeCertificates(c.CABundle))
		}
	}
	return all
}

// publish has a registration trust the bundle. One that was written since it was read is left to the next round.
func (s *Seal) publish(ctx context.Context, r registration, bundle []byte) error {
	patch := []jsonpatch.Operation{jsonpatch.NewOperation("replace", "/metadata/resourceVersion", r.GetResourceVersion())}
	for i, c := range r.configs {
		if !bytes.Equal(c.CABundle, bundle) {
			patch = append(patch, jsonpatch.NewOperation("add", fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), bundle))
		}
	}
	if len(patch) == 1 {
		return nil
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encoding a patch: %w", err)
	}
	if err := s.Client.Patch(ctx, r.Object, client.RawPatch(types.JSONPatchType, text)); err != nil {
		return fmt.Errorf("writing the caBundle of webhook configuration %s: %w", r.GetName(), err)
	}
	s.Log.Info("wrote the caBundle", "configuration", r.GetName(), "webhooks", len(patch)-1)
	return nil
}
