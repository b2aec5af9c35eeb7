package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LeakReport is what the audit of one backend found. It is named after the backend, and the audit alone writes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.status.mode`
// +kubebuilder:printcolumn:name="Allocations",type=integer,JSONPath=`.status.lastRun.allocations`
// +kubebuilder:printcolumn:name="Orphaned",type=integer,JSONPath=`.status.lastRun.orphaned`
// +kubebuilder:printcolumn:name="Unproven",type=integer,JSONPath=`.status.lastRun.unproven`
// +kubebuilder:printcolumn:name="Released",type=integer,JSONPath=`.status.lastRun.released`
// +kubebuilder:printcolumn:name="Last run",type=date,JSONPath=`.status.lastRun.finishedAt`
type LeakReport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Status LeakReportStatus `json:"status,omitzero"`
}

// LeakReportList is a list of reports.
//
// +kubebuilder:object:root=true
type LeakReportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []LeakReport `json:"items"`
}

// LeakReportStatus is the state after the last run.
type LeakReportStatus struct {
	// Mode is the backend's.
	Mode string `json:"mode,omitempty"`

	// LastRun counts hand-outs.
	LastRun LeakReportRun `json:"lastRun,omitzero"`

	// Candidates are the hand-outs that are suspected to have leaked, oldest suspicion first, at most 100.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Candidates []LeakCandidate `json:"candidates,omitempty"`

	// Truncated is how many more candidates there are.
	Truncated int64 `json:"truncated,omitempty"`

	// Released are the hand-outs that the audit released last, newest first, at most 100. The whole journal is the log.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Released []LeakRelease `json:"released,omitempty"`

	// Conditions are Healthy, Stopped, Pacing, FinalizersCleared and, of the native backend, Guarded.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// LeakReportRun is one run of the audit.
type LeakReportRun struct {
	StartedAt  metav1.Time `json:"startedAt,omitzero"`
	FinishedAt metav1.Time `json:"finishedAt,omitzero"`

	// Allocations is how many hand-outs are recorded: the sum of InUse, Unproven and Orphaned.
	//
	// +optional
	Allocations int64 `json:"allocations"`

	// InUse is how many of them are in use, or reserved by hand.
	//
	// +optional
	InUse int64 `json:"inUse"`

	// Unproven is how many cannot be told either way.
	//
	// +optional
	Unproven int64 `json:"unproven"`

	// Orphaned is how many have no owner any more, or one whose end is proven.
	//
	// +optional
	Orphaned int64 `json:"orphaned"`

	// Released is how many of these the run gave back.
	//
	// +optional
	Released int64 `json:"released"`
}

// LeakCandidate is a hand-out that is suspected to have leaked.
type LeakCandidate struct {
	// Address has both addresses of a pair, with a comma.
	Address string `json:"address"`
	Handle  string `json:"handle"`
	// Owner as the record tells it, such as Pod default/web-0 (uid 6f0c).
	Owner string `json:"owner"`
	// Reason is a word such as OwnerGone.
	Reason string `json:"reason"`
	// Evidence says what was seen.
	Evidence  string      `json:"evidence,omitempty"`
	FirstSeen metav1.Time `json:"firstSeen,omitzero"`
	// ReleaseAfter is when it will be released at the earliest, if nothing speaks for it until then. It is absent where
	// the mode releases nothing.
	ReleaseAfter metav1.Time `json:"releaseAfter,omitzero"`
}

// LeakRelease is a hand-out that was given back.
type LeakRelease struct {
	Address  string      `json:"address"`
	Handle   string      `json:"handle"`
	Owner    string      `json:"owner"`
	Reason   string      `json:"reason"`
	Evidence string      `json:"evidence,omitempty"`
	At       metav1.Time `json:"at"`
	// By is the manager that did it.
	By string `json:"by,omitempty"`
}
