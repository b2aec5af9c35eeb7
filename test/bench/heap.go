package main

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/oakum-dev/oakum/cluster"
)

// tracked is how many pods are held in memory on each side.
const tracked = 50_000

// heap compares the memory of Oakum's pod cache with that of a plain informer's. Every pod is decoded from the API
// server's wire format, so that no string is shared.
func (r *report) heap() error {
	plain, err := heapOf(func(p *corev1.Pod) any { return p })
	if err != nil {
		return err
	}
	control, err := heapOf(func(p *corev1.Pod) any { return p })
	if err != nil {
		return err
	}
	slim, err := heapOf(func(p *corev1.Pod) any { return cluster.Observe(p) })
	if err != nil {
		return err
	}
	for side, v := range map[string]float64{"with": slim, "without": plain, "control": control} {
		fmt.Fprintf(r.raw, "BenchmarkHeapPerPod/side=%s 1 %.0f B/pod\n", side, v)
	}
	fmt.Fprintf(r.out, "| HeapPerPod | %.0f B | %.0f B | **%.3g** | %.2f | – | ≤ 0.10 |\n", slim, plain, slim/plain, control/plain)
	return nil
}

func heapOf(keep func(*corev1.Pod) any) (bytesPerPod float64, err error) {
	store := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{
		toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc,
	})
	before := heapNow()
	for i := range tracked {
		wire, err := realisticPod(i).Marshal()
		if err != nil {
			return 0, fmt.Errorf("encoding a pod: %w", err)
		}
		var p corev1.Pod
		if err := p.Unmarshal(wire); err != nil {
			return 0, fmt.Errorf("decoding a pod: %w", err)
		}
		if err := store.Add(keep(&p)); err != nil {
			return 0, fmt.Errorf("keeping a pod: %w", err)
		}
	}
	used := heapNow() - before
	runtime.KeepAlive(store)
	return float64(used) / tracked, nil
}

func heapNow() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// realisticPod is a pod as one sees them: a main container and a sidecar with some environment, probes and volumes, an
// init container, a ReplicaSet as owner, field managers, and the status of a kubelet.
func realisticPod(i int) *corev1.Pod {
	name := fmt.Sprintf("frontend-7d4f9c6b58-%05x", i)
	now := metav1.NewTime(time.Unix(1_790_000_000, 0))
	env := func(n int) []corev1.EnvVar {
		vars := make([]corev1.EnvVar, n)
		for j := range vars {
			vars[j] = corev1.EnvVar{Name: fmt.Sprintf("FRONTEND_SETTING_%02d", j), Value: fmt.Sprintf("https://service-%02d.example.org:8443/path", j)}
		}
		return vars
	}
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Scheme: "HTTP"}}, PeriodSeconds: 10}
	container := func(name string, n int) corev1.Container {
		return corev1.Container{
			Name: name, Image: "registry.example.org/team/" + name + ":v1.42.7", Env: env(n),
			Ports:          []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
			LivenessProbe:  probe,
			ReadinessProbe: probe,
			VolumeMounts: []corev1.VolumeMount{
				{Name: "config", MountPath: "/etc/frontend"},
				{Name: "kube-api-access-x7x2p", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true},
			},
			ImagePullPolicy: corev1.PullIfNotPresent, TerminationMessagePath: "/dev/termination-log",
		}
	}
	status := func(name string) corev1.ContainerStatus {
		return corev1.ContainerStatus{
			Name: name, Ready: true, Image: "registry.example.org/team/" + name + ":v1.42.7",
			ImageID:     "registry.example.org/team/" + name + "@sha256:" + strings.Repeat("0f", 32),
			ContainerID: "containerd://" + strings.Repeat("a1", 32),
			State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		}
	}
	condition := func(t corev1.PodConditionType) corev1.PodCondition {
		return corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: now}
	}
	fields := func(n int) *metav1.FieldsV1 {
		return metav1.NewFieldsV1(`{"f:spec":{` + strings.Repeat(`"k:{\"name\":\"FRONTEND_SETTING\"}":{".":{},"f:name":{},"f:value":{}},`, n) + `"f:x":{}}}`)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("team-%02d", i%40), Name: name, GenerateName: "frontend-7d4f9c6b58-",
			UID: types.UID(fmt.Sprintf("6f0c9c1e-52a1-4b7e-9f5f-%012x", i)), ResourceVersion: fmt.Sprint(100_000 + i), CreationTimestamp: now,
			Labels: map[string]string{
				"app.kubernetes.io/name": "frontend", "app.kubernetes.io/instance": "frontend", "app.kubernetes.io/version": "1.42.7", "pod-template-hash": "7d4f9c6b58",
			},
			Annotations: map[string]string{
				"prometheus.io/scrape": "true", "prometheus.io/port": "8080", "checksum/config": strings.Repeat("c4", 32),
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "frontend-7d4f9c6b58", UID: "0d9f4e57-6d2b-4b0a-8a55-2f7f6d0c1b11", Controller: new(true),
			}},
			Finalizers: []string{"ipam.oakum.dev/addresses"},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: "kube-controller-manager", Operation: "Update", APIVersion: "v1", Time: &now, FieldsType: "FieldsV1", FieldsV1: fields(25)},
				{Manager: "kubelet", Operation: "Update", APIVersion: "v1", Time: &now, FieldsType: "FieldsV1", FieldsV1: fields(12), Subresource: "status"},
			},
		},
		Spec: corev1.PodSpec{
			NodeName:       fmt.Sprintf("ip-10-20-%d-%d.eu-central-1.compute.internal", i/250%250, i%250),
			InitContainers: []corev1.Container{container("migrate", 4)},
			Containers:     []corev1.Container{container("frontend", 16), container("envoy", 4)},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "frontend"}}}},
				{Name: "kube-api-access-x7x2p", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: new(int64(3607)), Path: "token"}},
				}}}},
			},
			Tolerations: []corev1.Toleration{
				{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(300))},
				{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(300))},
			},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, HostIP: "10.20.1.7", PodIP: fmt.Sprintf("10.100.%d.%d", i/250, i%250), StartTime: &now,
			PodIPs:                []corev1.PodIP{{IP: fmt.Sprintf("10.100.%d.%d", i/250, i%250)}, {IP: fmt.Sprintf("fd00:100::%x", i)}},
			Conditions:            []corev1.PodCondition{condition("PodReadyToStartContainers"), condition("Initialized"), condition("Ready"), condition("ContainersReady"), condition("PodScheduled")},
			InitContainerStatuses: []corev1.ContainerStatus{status("migrate")},
			ContainerStatuses:     []corev1.ContainerStatus{status("frontend"), status("envoy")},
			QOSClass:              corev1.PodQOSBurstable,
		},
	}
}
