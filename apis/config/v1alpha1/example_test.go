package v1alpha1_test

import (
	"fmt"

	"github.com/oakum-dev/oakum/apis/config/v1alpha1"
)

// The smallest useful file sets one thing; the rest is defaulted.
func ExampleDecode() {
	c, err := v1alpha1.Decode([]byte(`
apiVersion: config.oakum.dev/v1alpha1
kind: Configuration
backends:
  native:
    mode: Warn
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c.Backends.Native.Mode, c.Finalizers.Pods.Deadline.Duration, c.Namespace)
	// Output: Warn 10m0s oakum-system
}

// A mistake is told with its line, its field and what to write instead. Put the name of the file in front.
func ExampleDecode_mistake() {
	_, err := v1alpha1.Decode([]byte(`apiVersion: config.oakum.dev/v1alpha1
kind: Configuration
backends:
  native:
    mode: Enforced
`))
	fmt.Printf("oakum.yaml: %v\n", err)
	// Output: oakum.yaml: line 5: backends.native.mode: Unsupported value: "Enforced": supported values: "Off", "Observe", "Warn", "Enforce"
}
