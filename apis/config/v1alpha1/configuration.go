package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

const (
	// APIVersion is the apiVersion that a configuration file must have.
	APIVersion = "config.oakum.dev/v1alpha1"
	// Kind is the kind that a configuration file must have.
	Kind = "Configuration"
)

// Configuration is the whole file. Default gives what holds for a setting that the file leaves out.
type Configuration struct {
	metav1.TypeMeta `json:",inline"`

	// Namespace is where Oakum keeps its Leases. Default "oakum-system".
	Namespace      string         `json:"namespace"`
	Backends       Backends       `json:"backends"`
	Finalizers     Finalizers     `json:"finalizers"`
	Audit          Audit          `json:"audit"`
	LeaderElection LeaderElection `json:"leaderElection"`
	Metrics        Metrics        `json:"metrics"`
	Health         Health         `json:"health"`
	Webhook        Webhook        `json:"webhook"`
	Log            Log            `json:"log"`
	Debug          Debug          `json:"debug"`
}

// Finalizers sets how long the deletion of an object may wait for its addresses.
type Finalizers struct {
	Pods  PodFinalizers  `json:"pods"`
	Nodes NodeFinalizers `json:"nodes"`
	// NodeDeletionMeansFenced asserts that whoever deletes a Node has made sure that the machine is off, so that the
	// addresses of its pods need no quarantine. Default false.
	NodeDeletionMeansFenced bool `json:"nodeDeletionMeansFenced"`
}

// PodFinalizers sets how Pods are held until their addresses are free. Which backends hold them is Backend.PodFinalizers.
type PodFinalizers struct {
	// Deadline is how long after its deletionTimestamp a Pod is let go at the latest; its addresses stay with the
	// audit. 1s to 24h, default 10m.
	Deadline metav1.Duration `json:"deadline"`
	// ExcludedNamespaces are those whose Pods never get a finalizer. Default kube-system; an empty list excludes none.
	ExcludedNamespaces []string `json:"excludedNamespaces"`
	// BackfillPerSecond limits how many running Pods get their finalizer afterwards. 1 to 1000, default 50.
	BackfillPerSecond int `json:"backfillPerSecond"`
}

// NodeFinalizers sets how Nodes are held while their own addresses are given back.
type NodeFinalizers struct {
	// Backends are those on whose behalf Nodes are held. Default native; an empty list holds no Node.
	Backends []string `json:"backends"`
	// Deadline is how long after its deletionTimestamp a Node is let go at the latest. 1s to 5m, default 30s.
	Deadline metav1.Duration `json:"deadline"`
}

// Audit sets how often leaks are looked for, and the patience with which they are released.
type Audit struct {
	// Interval lies between two runs. At least 1s, default 5m.
	Interval metav1.Duration `json:"interval"`
	// GracePeriod lies between the two sightings that the release of an orphan needs, and passes before an empty block
	// is deleted. More than 0s, default 5m.
	GracePeriod metav1.Duration `json:"gracePeriod"`
	// Quarantine is the same for orphans whose owner's end is not proven. At least GracePeriod, default 15m.
	Quarantine metav1.Duration `json:"quarantine"`
	// Pace limits what one run may release.
	Pace Pace `json:"pace"`
}

// Pace limits the releases of one run that rest on the absence of an owner: to the larger of the two. Releases on proof
// are not counted.
type Pace struct {
	// Fraction of all hand-outs that are recorded. 0 to 1, default 0.1.
	Fraction float64 `json:"fraction"`
	// Minimum is a number of hand-outs. At least 1, default 50.
	Minimum int `json:"minimum"`
}

// LeaderElection decides which of several replicas reconciles. All of them answer webhooks.
type LeaderElection struct {
	// Enabled may be false where there is just one replica. Default true.
	Enabled bool `json:"enabled"`
	// Namespace is that of the leader's Lease; empty, the default, means Configuration.Namespace.
	Namespace string `json:"namespace"`
	// LeaseDuration is how long the others wait for a silent leader. At least 1s and more than RenewDeadline, default 15s.
	LeaseDuration metav1.Duration `json:"leaseDuration"`
	// RenewDeadline is how long a leader tries to renew before it gives up. More than 1.2 times RetryPeriod, default 10s.
	RenewDeadline metav1.Duration `json:"renewDeadline"`
	// RetryPeriod lies between two tries of the leader, and up to 2.2 times as much between those of another replica: it sees a leader's
	// end later by that, and takes its place later by that again. More than 0s, default 500ms.
	RetryPeriod metav1.Duration `json:"retryPeriod"`
}

// Metrics is the server of /metrics.
type Metrics struct {
	// BindAddress is host:port, the host may be empty; "0" means no server. Default ":8443".
	BindAddress string `json:"bindAddress"`
	// Secure serves HTTPS to clients that the API server lets read /metrics. Default true.
	Secure bool `json:"secure"`
	// CertDir holds tls.crt and tls.key. Empty, the default, means a certificate that the manager signs itself.
	CertDir string `json:"certDir"`
}

// Health is the server of /healthz and /readyz.
type Health struct {
	// BindAddress is host:port, the host may be empty; "0" means no server. Default ":8081".
	BindAddress string `json:"bindAddress"`
}

// Webhook is the server that the API server calls.
type Webhook struct {
	// Host is an IP address or a DNS name of the interface to listen on; empty, the default, means all.
	Host string `json:"host"`
	// Port is 1 to 65535, default 9443.
	Port int `json:"port"`
	// CertDir holds tls.crt and tls.key. Default "/var/run/oakum/webhook-certs". It is not read where SelfSigned is set.
	CertDir string `json:"certDir"`
	// SelfSigned has the manager make its certificates itself. Nil, the default, means the files in CertDir.
	SelfSigned *SelfSigned `json:"selfSigned,omitempty"`
}

// SelfSigned names what the manager needs to make its certificates, and to have the API server trust them.
type SelfSigned struct {
	// SecretName is that of the Secret in Configuration.Namespace in which the manager keeps its CAs.
	SecretName string `json:"secretName"`
	// ServiceName is that of the Service in Configuration.Namespace through which the API server calls the webhooks.
	ServiceName string `json:"serviceName"`
}

// Log sets what is logged.
type Log struct {
	// Level is the least important level that is logged. Default LevelInfo.
	Level Level `json:"level"`
}

// Debug is what shows where the manager spends its time and memory.
type Debug struct {
	// PprofBindAddress is host:port of a server of net/http/pprof for clients in the same pod, which it asks for nothing, and
	// so the host is a loopback address; "0" means no server. Default "0".
	PprofBindAddress string `json:"pprofBindAddress"`
}

// Level is how important a log line is.
type Level string

// The levels, from everything to trouble only.
const (
	LevelDebug Level = "debug"
	LevelInfo  Level = "info"
	LevelError Level = "error"
)
