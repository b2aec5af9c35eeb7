//go:build e2e

package install

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestServicesAreReached(t *testing.T) {
	p := found(t)
	service := p.settle()
	neighbours := p.neighbours()
	names := slices.Sorted(maps.Keys(neighbours))
	if len(names) != 2 {
		t.Fatalf("the neighbours are %q, want two", names)
	}
	p.answers("the Service, to this process", names, func(ctx context.Context) (string, error) { return ask(ctx, service) })
	for name, address := range neighbours {
		p.answers("the Service, to "+name, names, func(ctx context.Context) (string, error) {
			return ask(ctx, "http://"+address+":8080/via?url="+url.QueryEscape(service))
		})
		list, err := ask(t.Context(), "http://"+address+":8080/pods")
		if diff := cmp.Diff(names, strings.Split(list, "\n")); err != nil || diff != "" {
			t.Errorf("the API server, to %s (-want +got):\n%s%v", name, diff, err)
		}
	}
}

const (
	street = "street"               // the namespace of the neighbours
	house  = "oakum.dev/house:test" // the image that they run
)

// settle lets two neighbours run, restricted as a cluster may demand it, and returns the URL of their Service.
func (p *place) settle() string {
	p.t.Helper()
	p.must(p.Import(p.t.Context(), house, p.compile("github.com/oakum-dev/oakum/test/e2e/install/neighbour")))
	labels := map[string]string{"app": "neighbour"}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: street, Name: "neighbour"},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}},
	}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: street, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}},
		&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: street, Name: "neighbour"},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: street, Name: "neighbour"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "neighbour"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: street, Name: "default"}},
		},
		&appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: street, Name: "neighbour"},
			Spec: appsv1.DeploymentSpec{
				Replicas: new(int32(2)),
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: restricted()},
			},
		},
		service,
	} {
		p.must(p.Client.Create(p.t.Context(), object))
	}
	p.available()
	return "http://" + service.Spec.ClusterIP
}

// restricted is what a neighbour is made of.
func restricted() corev1.PodSpec {
	return corev1.PodSpec{
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   new(true),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name: "neighbour", Image: house, ImagePullPolicy: corev1.PullIfNotPresent,
			ReadinessProbe: &corev1.Probe{
				ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8080)}},
				PeriodSeconds: 1,
			},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false),
				ReadOnlyRootFilesystem:   new(true),
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
	}
}

// available waits until the neighbours are ready, which a kubelet says that reaches them.
func (p *place) available() {
	p.t.Helper()
	p.eventually("the neighbours are ready", func(ctx context.Context) error {
		var d appsv1.Deployment
		if err := p.Client.Get(ctx, client.ObjectKey{Namespace: street, Name: "neighbour"}, &d); err != nil {
			return err
		}
		if d.Status.ReadyReplicas != 2 {
			return fmt.Errorf("%d are ready", d.Status.ReadyReplicas)
		}
		return nil
	})
}

// neighbours are the addresses of the neighbours by name.
func (p *place) neighbours() map[string]string {
	p.t.Helper()
	var list corev1.PodList
	p.must(p.Client.List(p.t.Context(), &list, client.InNamespace(street)))
	addresses := map[string]string{}
	for _, pod := range list.Items {
		addresses[pod.Name] = pod.Status.PodIP
	}
	return addresses
}

// answers waits until a question has been answered by each of them and by nobody else.
func (p *place) answers(what string, want []string, question func(context.Context) (string, error)) {
	p.t.Helper()
	seen := map[string]bool{}
	p.eventually(what, func(ctx context.Context) error {
		answer, err := question(ctx)
		if err != nil {
			return err
		}
		if !slices.Contains(want, answer) {
			p.t.Fatalf("%s: %q answers, want one of %q", what, answer, want)
		}
		if seen[answer] = true; len(seen) < len(want) {
			return fmt.Errorf("only %v have answered", seen)
		}
		return nil
	})
}

// ask returns what a URL answers, over a connection of its own. What nobody answers is given up before long.
func ask(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // It was only read.
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", url, resp.Status, body)
	}
	return string(body), err
}
