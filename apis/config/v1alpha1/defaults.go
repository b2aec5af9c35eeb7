package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Default returns the configuration of a file that sets nothing. It is valid. Decode lays the file over it, so a zero
// that somebody wrote is never taken for a setting that was left out.
func Default() *Configuration {
	return &Configuration{
		TypeMeta:  metav1.TypeMeta{APIVersion: APIVersion, Kind: Kind},
		Namespace: "oakum-system",
		Backends: Backends{
			Native:      Backend{Mode: ModeEnforce, PodFinalizers: true},
			Whereabouts: Whereabouts{Backend: Backend{Mode: ModeObserve, PodFinalizers: true}, Namespace: metav1.NamespaceSystem},
			Coil:        Coil{Backend: Backend{Mode: ModeObserve, PodFinalizers: true}},
			Calico:      Calico{Backend: Backend{Mode: ModeObserve, PodFinalizers: true}},
		},
		Finalizers: Finalizers{
			Pods: PodFinalizers{
				Deadline:           metav1.Duration{Duration: 10 * time.Minute},
				ExcludedNamespaces: []string{metav1.NamespaceSystem},
				BackfillPerSecond:  50,
			},
			Nodes: NodeFinalizers{
				Backends: []string{"native"},
				Deadline: metav1.Duration{Duration: 30 * time.Second},
			},
		},
		Audit: Audit{
			Interval:    metav1.Duration{Duration: 5 * time.Minute},
			GracePeriod: metav1.Duration{Duration: 5 * time.Minute},
			Quarantine:  metav1.Duration{Duration: 15 * time.Minute},
			Pace:        Pace{Fraction: 0.1, Minimum: 50},
		},
		LeaderElection: LeaderElection{
			Enabled:       true,
			LeaseDuration: metav1.Duration{Duration: 15 * time.Second},
			RenewDeadline: metav1.Duration{Duration: 10 * time.Second},
			RetryPeriod:   metav1.Duration{Duration: 500 * time.Millisecond},
		},
		Metrics: Metrics{BindAddress: ":8443", Secure: true},
		Health:  Health{BindAddress: ":8081"},
		Webhook: Webhook{Port: 9443, CertDir: "/var/run/oakum/webhook-certs"},
		Log:     Log{Level: LevelInfo},
		Debug:   Debug{PprofBindAddress: "0"},
	}
}
