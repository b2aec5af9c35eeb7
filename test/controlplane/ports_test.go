package controlplane

import "testing"

func TestPortsAreReservedOnce(t *testing.T) {
	t.Parallel()
	var here, there ports
	t.Cleanup(here.release)
	t.Cleanup(there.release)
	reserved := map[int]bool{}
	for range 150 {
		for _, p := range []*ports{&here, &there} {
			port, err := p.reserve()
			if err != nil {
				t.Fatal(err)
			}
			if reserved[port] {
				t.Fatalf("port %d was reserved twice", port)
			}
			reserved[port] = true
		}
	}
}
