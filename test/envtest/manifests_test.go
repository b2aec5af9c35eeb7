package envtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
)

func TestSamplesAreAdmitted(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "samples")
	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "config", "samples", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		samples, err := controlplane.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, sample := range samples {
			n++
			t.Run(sample.GetKind()+" "+sample.GetName(), func(t *testing.T) {
				s.in(t).wants(answer{}, s.client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(sample), applier))
			})
		}
	}
	if n == 0 {
		t.Error("there are no samples")
	}
}

// installation is what kubectl apply -k installs.
type installation []*unstructured.Unstructured

// build runs kustomize on a folder of config/, and returns the file too.
func build(t *testing.T, folder string) (file string, all installation) {
	t.Helper()
	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), folder+".yaml")
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "bin", "kustomize"), "build", filepath.Join(root, "config", folder), "--output", file)
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building config/%s: %v: %s (make bin/kustomize builds kustomize)", folder, err, output)
	}
	all, err = controlplane.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	return file, all
}

func TestDefaultInstallationIsApplied(t *testing.T) {
	t.Parallel()
	p := own(t, controlplane.StartBare)
	file, all := build(t, "default")
	if err := p.Apply(t.Context(), certManager(t)); err != nil {
		t.Fatal(err)
	}
	// cert-manager's kinds are not served at once.
	eventually(t, func() error { return p.Apply(t.Context(), file) })

	versions := func() (map[string]string, error) {
		found := map[string]string{}
		for _, o := range all {
			live := o.DeepCopy()
			if err := p.Client.Get(t.Context(), client.ObjectKeyFromObject(o), live); err != nil {
				return nil, err
			}
			found[o.GetKind()+" "+o.GetName()] = live.GetResourceVersion()
		}
		return found, nil
	}
	// The API server itself still reports on the new kinds for a moment.
	eventually(t, func() error {
		before, err := versions()
		if err != nil {
			return err
		}
		if err := p.Apply(t.Context(), file); err != nil {
			return err
		}
		after, err := versions()
		if diff := gocmp.Diff(before, after); diff != "" {
			return errors.New("applying again changed (-before +after):\n" + diff)
		}
		return err
	})

	// What the Deployment would start is admitted, although the namespace is restricted.
	template := one[appsv1.Deployment](t, all, "Deployment", "oakum").Spec.Template
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Namespace, pod.Name = controlplane.Namespace, "oakum"
	if err := p.Client.Create(t.Context(), pod, client.DryRunAll); err != nil {
		t.Error(err)
	}
}

// certManager returns the folder of cert-manager's definitions, in the module that the repository pins.
func certManager(t *testing.T) string {
	t.Helper()
	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "-C", filepath.Join(root, "tools", "certmanager"), "mod", "download", "-json", "github.com/cert-manager/cert-manager")
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("finding cert-manager: %v", err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(output, &module); err != nil {
		t.Fatalf("finding cert-manager: %v", err)
	}
	return filepath.Join(module.Dir, "deploy", "crds")
}

// find returns the object of that kind and name.
func find(t *testing.T, all installation, kind, name string) *unstructured.Unstructured {
	t.Helper()
	i := slices.IndexFunc(all, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind && o.GetName() == name })
	if i < 0 {
		t.Fatalf("there is no %s %q", kind, name)
	}
	return all[i]
}

// one does as find for a kind that Kubernetes has.
func one[T any](t *testing.T, all installation, kind, name string) *T {
	t.Helper()
	object := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(find(t, all, kind, name).Object, object, true); err != nil {
		t.Fatalf("reading %s %q: %v", kind, name, err)
	}
	return object
}

// every does something with each object of a kind.
func every[T any](t *testing.T, all installation, kind string, do func(*T)) {
	t.Helper()
	n := 0
	for _, o := range all {
		if o.GetKind() == kind {
			do(one[T](t, all, kind, o.GetName()))
			n++
		}
	}
	if n == 0 {
		t.Errorf("there is no %s", kind)
	}
}

func TestNamesInTheDefaultInstallationResolve(t *testing.T) {
	t.Parallel()
	_, all := build(t, "default")
	deployment := one[appsv1.Deployment](t, all, "Deployment", "oakum")
	pod := deployment.Spec.Template
	container := pod.Spec.Containers[0]
	settings := settingsOf(t, all, pod.Spec)
	ports := map[string]int32{}
	for _, p := range container.Ports {
		ports[p.Name] = p.ContainerPort
	}

	t.Run("ports", func(t *testing.T) {
		want := map[string]int32{"webhook": int32(settings.Webhook.Port), "metrics": port(t, settings.Metrics.BindAddress), "health": port(t, settings.Health.BindAddress)}
		if diff := gocmp.Diff(want, ports); diff != "" {
			t.Errorf("the container's ports (-configured +named):\n%s", diff)
		}
		for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
			if name := probe.HTTPGet.Port.StrVal; name != "health" {
				t.Errorf("the probe of %s asks port %q", probe.HTTPGet.Path, name)
			}
		}
	})
	t.Run("webhooks", func(t *testing.T) {
		check := func(meta metav1.ObjectMeta, name string, c admissionregistrationv1.WebhookClientConfig) {
			service := one[corev1.Service](t, all, "Service", c.Service.Name)
			wanted := int32(443)
			if c.Service.Port != nil {
				wanted = *c.Service.Port
			}
			i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == wanted })
			switch {
			case service.Namespace != c.Service.Namespace:
				t.Errorf("%s: Service %s is in %q, not in %q", name, service.Name, service.Namespace, c.Service.Namespace)
			case i < 0:
				t.Errorf("%s: Service %s has no port %d", name, service.Name, wanted)
			case ports[service.Spec.Ports[i].TargetPort.StrVal] != int32(settings.Webhook.Port):
				t.Errorf("%s: port %d of Service %s does not lead to the webhook server", name, wanted, service.Name)
			case !selects(service.Spec.Selector, pod.Labels):
				t.Errorf("%s: Service %s does not select the Deployment's pods", name, service.Name)
			}
			host := service.Name + "." + service.Namespace + ".svc"
			checkCertificate(t, all, meta.Annotations["cert-manager.io/inject-ca-from"], host, pod.Spec, settings.Webhook.CertDir)
		}
		every(t, all, "MutatingWebhookConfiguration", func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			for _, w := range c.Webhooks {
				check(c.ObjectMeta, w.Name, w.ClientConfig)
			}
		})
		every(t, all, "ValidatingWebhookConfiguration", func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			for _, w := range c.Webhooks {
				check(c.ObjectMeta, w.Name, w.ClientConfig)
			}
		})
	})
	t.Run("policies", func(t *testing.T) {
		every(t, all, "ValidatingAdmissionPolicyBinding", func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) {
			one[admissionregistrationv1.ValidatingAdmissionPolicy](t, all, "ValidatingAdmissionPolicy", b.Spec.PolicyName)
		})
	})
	t.Run("roles", func(t *testing.T) {
		account := one[corev1.ServiceAccount](t, all, "ServiceAccount", pod.Spec.ServiceAccountName)
		want := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: account.Namespace, Name: account.Name}}
		every(t, all, "ClusterRoleBinding", func(b *rbacv1.ClusterRoleBinding) {
			one[rbacv1.ClusterRole](t, all, b.RoleRef.Kind, b.RoleRef.Name)
			if diff := gocmp.Diff(want, b.Subjects); diff != "" {
				t.Errorf("subjects (-want +got):\n%s", diff)
			}
		})
		every(t, all, "RoleBinding", func(b *rbacv1.RoleBinding) {
			role := one[rbacv1.Role](t, all, b.RoleRef.Kind, b.RoleRef.Name)
			if role.Namespace != settings.Namespace || b.Namespace != settings.Namespace {
				t.Errorf("the Leases are in %q, but RoleBinding %s in %q", settings.Namespace, b.Name, b.Namespace)
			}
			if diff := gocmp.Diff(want, b.Subjects); diff != "" {
				t.Errorf("subjects (-want +got):\n%s", diff)
			}
		})
	})
}

// Without cert-manager nothing but the Service and the Secret that the settings name connects the parts.
func TestSelfSignedInstallationFitsTogether(t *testing.T) {
	t.Parallel()
	_, all := build(t, "selfsigned")
	pod := one[appsv1.Deployment](t, all, "Deployment", "oakum").Spec.Template
	settings := settingsOf(t, all, pod.Spec)
	if settings.Webhook.SelfSigned == nil {
		t.Fatal("the certificates are not of its own making")
	}
	var volumes []string
	for _, v := range pod.Spec.Volumes {
		volumes = append(volumes, v.Name)
	}
	if diff := gocmp.Diff([]string{"config"}, volumes); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create"}},
		{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{settings.Webhook.SelfSigned.SecretName}, Verbs: []string{"get", "update"}},
	}
	if diff := gocmp.Diff(want, one[rbacv1.Role](t, all, "Role", "oakum-selfsigned").Rules); diff != "" {
		t.Errorf("rights in the namespace (-want +got):\n%s", diff)
	}
	account := one[corev1.ServiceAccount](t, all, "ServiceAccount", pod.Spec.ServiceAccountName)
	for _, binding := range []*unstructured.Unstructured{find(t, all, "ClusterRoleBinding", "oakum-selfsigned"), find(t, all, "RoleBinding", "oakum-selfsigned")} {
		subjects, _, err := unstructured.NestedSlice(binding.Object, "subjects")
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff([]any{map[string]any{"kind": "ServiceAccount", "namespace": account.Namespace, "name": account.Name}}, subjects); diff != "" {
			t.Errorf("subjects of %s (-want +got):\n%s", binding.GetKind(), diff)
		}
	}
	every(t, all, "ValidatingWebhookConfiguration", func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
		for _, w := range c.Webhooks {
			if s := w.ClientConfig.Service; s.Namespace != settings.Namespace || s.Name != settings.Webhook.SelfSigned.ServiceName {
				t.Errorf("%s calls Service %s/%s, which gets no certificate", w.Name, s.Namespace, s.Name)
			}
		}
	})
}

// settingsOf reads the configuration file as the manager in the pod would.
func settingsOf(t *testing.T, all installation, pod corev1.PodSpec) *config.Configuration {
	t.Helper()
	var file string
	for _, arg := range pod.Containers[0].Args {
		if name, found := strings.CutPrefix(arg, "--config="); found {
			file = name
		}
	}
	volume := mounted(t, pod, path.Dir(file))
	if volume.ConfigMap == nil {
		t.Fatalf("%s does not come from a ConfigMap", file)
	}
	settings, err := config.Decode([]byte(one[corev1.ConfigMap](t, all, "ConfigMap", volume.ConfigMap.Name).Data[path.Base(file)]))
	if err != nil {
		t.Fatalf("reading %s: %v", file, err)
	}
	return settings
}

// mounted returns the volume that the manager finds at a path.
func mounted(t *testing.T, pod corev1.PodSpec, at string) corev1.Volume {
	t.Helper()
	for _, m := range pod.Containers[0].VolumeMounts {
		for _, v := range pod.Volumes {
			if m.MountPath == at && m.Name == v.Name {
				return v
			}
		}
	}
	t.Fatalf("nothing is mounted at %q", at)
	return corev1.Volume{}
}

// checkCertificate follows a certificate from the webhook's annotation to the manager's folder, and to its CA.
func checkCertificate(t *testing.T, all installation, ref, host string, pod corev1.PodSpec, dir string) {
	t.Helper()
	text := func(o *unstructured.Unstructured, fields ...string) string {
		value, _, err := unstructured.NestedString(o.Object, append([]string{"spec"}, fields...)...)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	namespace, name, _ := strings.Cut(ref, "/")
	leaf := find(t, all, "Certificate", name)
	if leaf.GetNamespace() != namespace {
		t.Errorf("Certificate %s is in %q, not in %q", name, leaf.GetNamespace(), namespace)
	}
	names, _, err := unstructured.NestedStringSlice(leaf.Object, "spec", "dnsNames")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(names, host) {
		t.Errorf("Certificate %s is for %q, not for %s", name, names, host)
	}
	secret := text(leaf, "secretName")
	if volume := mounted(t, pod, dir); volume.Secret == nil || volume.Secret.SecretName != secret {
		t.Errorf("Secret %s of Certificate %s is not mounted at %s", secret, name, dir)
	}
	issuer := find(t, all, "Issuer", text(leaf, "issuerRef", "name"))
	ca := find(t, all, "Certificate", issuer.GetName())
	if has, want := text(ca, "secretName"), text(issuer, "ca", "secretName"); has != want {
		t.Errorf("Issuer %s signs with Secret %s, but the CA is in %s", issuer.GetName(), want, has)
	}
	find(t, all, "Issuer", text(ca, "issuerRef", "name"))
}

func port(t *testing.T, address string) int32 {
	t.Helper()
	var n int32
	if _, err := fmt.Sscanf(address[strings.LastIndex(address, ":"):], ":%d", &n); err != nil {
		t.Fatalf("reading the port of %q: %v", address, err)
	}
	return n
}

func selects(selector, labels map[string]string) bool {
	kept := maps.Clone(labels)
	maps.DeleteFunc(kept, func(key, _ string) bool { return selector[key] == "" })
	return maps.Equal(selector, kept)
}
