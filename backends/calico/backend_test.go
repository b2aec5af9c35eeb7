package calico_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/oakum-dev/oakum/backends/backendtest"
	"github.com/oakum-dev/oakum/backends/calico"
)

func groups() map[string]schema.GroupVersion {
	return map[string]schema.GroupVersion{"v1": calico.V1, "v3": calico.V3}
}

func TestBackendKeepsTheContract(t *testing.T) {
	for name, served := range groups() {
		t.Run(name, func(t *testing.T) {
			backendtest.Run(t, func(t *testing.T) backendtest.Fixture { return newStore(t, served) })
		})
	}
}
