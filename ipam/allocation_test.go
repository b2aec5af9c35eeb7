package ipam

import "testing"

func TestAddressText(t *testing.T) {
	tests := map[string]struct {
		addrs []string
		want  string
		size  int
	}{
		"none":                {nil, "", 0},
		"one":                 {[]string{"10.0.0.1"}, "10.0.0.1", 1},
		"a pair":              {[]string{"fd00::1", "10.0.0.1"}, "10.0.0.1,fd00::1", 1},
		"two in a row":        {[]string{"10.0.0.2", "10.0.0.1"}, "10.0.0.1,10.0.0.2", 2},
		"three in a row":      {[]string{"10.0.0.1", "10.0.0.3", "10.0.0.2"}, "10.0.0.1-10.0.0.3", 3},
		"with a gap":          {[]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.5"}, "10.0.0.1-10.0.0.3,10.0.0.5", 4},
		"in both families":    {[]string{"fd00::", "fd00::1", "fd00::2", "10.0.0.0", "10.0.0.1", "10.0.0.2"}, "10.0.0.0-10.0.0.2,fd00::-fd00::2", 3},
		"told more than once": {[]string{"10.0.0.1", "10.0.0.1"}, "10.0.0.1", 2},
		"at the end of all":   {[]string{"255.255.255.254", "255.255.255.255"}, "255.255.255.254,255.255.255.255", 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			place := Place{Addresses: addrs(tt.addrs...)}
			if got := (Allocation{Places: []Place{place}}).AddressText(); got != tt.want {
				t.Errorf("the text is %q, want %q", got, tt.want)
			}
			if got := place.Size(); got != tt.size {
				t.Errorf("the size is %d, want %d", got, tt.size)
			}
		})
	}
}
