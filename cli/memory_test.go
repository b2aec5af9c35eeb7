package cli

import (
	"os"
	"path/filepath"
	"testing"
)

func TestContainerLimit(t *testing.T) {
	tests := map[string]struct {
		text string
		want int64
	}{
		"nine tenths of a limit":            {text: "536870912\n", want: 483183819},
		"no limit":                          {text: "max\n"},
		"a file that nobody understands":    {text: "half of it"},
		"no memory at all is a mistake":     {text: "0"},
		"a limit that is none in effect":    {text: "9223372036854771712"},
		"a file that is empty":              {},
		"a limit that is less than nothing": {text: "-1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "memory.max")
			if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := containerLimit(file); got != tt.want {
				t.Errorf("the limit is %d, want %d", got, tt.want)
			}
		})
	}
	if got := containerLimit(filepath.Join(t.TempDir(), "none")); got != 0 {
		t.Errorf("without a file the limit is %d", got)
	}
}
