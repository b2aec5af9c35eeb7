package cli

import (
	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/go-logr/logr"
)

// limitMemory has Go collect garbage harder as the container's memory fills up, instead of growing until the kernel ends
// it. The limit is nine tenths of the container's; the environment variable GOMEMLIMIT goes before that. How many
// processors the container has, the runtime finds out itself.
func limitMemory(log logr.Logger) {
	limit, err := memlimit.Set()
	if err != nil {
		log.Info("no limit of memory is known", "reason", err.Error())
		return
	}
	log.V(1).Info("limiting memory", "bytes", limit)
}
