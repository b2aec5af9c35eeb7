package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Network is the configuration of the network that every pod is in.
type Network struct {
	// Ranges has one range, or one of each family, as Whereabouts reads them: 10.0.0.0/24, or
	// 10.0.0.10-10.0.0.20/24. None means 10.244.0.0/24.
	Ranges []string
	// Name is Whereabouts' network_name, which keeps the records of networks with the same ranges apart; it may be empty.
	Name string
	// Overlapping lets other networks hand out the same addresses: Whereabouts' enable_overlapping_ranges is false.
	Overlapping bool
}

// SetNetwork makes this the network of pods that are yet to start. Those that run leave theirs when they end.
func (c *Cluster) SetNetwork(n Network) error {
	if len(n.Ranges) == 0 {
		n.Ranges = []string{"10.244.0.0/24"}
	}
	ranges := make([]map[string]string, len(n.Ranges))
	for i, r := range n.Ranges {
		ranges[i] = map[string]string{"range": r}
	}
	ipam, err := json.Marshal(map[string]any{
		"type": "whereabouts", "configuration_path": filepath.Join(c.dir, "cni", "whereabouts.conf"),
		"ipRanges": ranges, "network_name": n.Name, "enable_overlapping_ranges": !n.Overlapping,
	})
	if err != nil {
		return fmt.Errorf("encoding the network: %w", err)
	}
	return c.Plugin.SetIPAM(ipam)
}

// RemoveWhereabouts takes Whereabouts' binary away from the node: ADD and DEL fail.
func (c *Cluster) RemoveWhereabouts() error {
	if err := os.Remove(c.whereabouts()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// RestoreWhereabouts brings it back.
func (c *Cluster) RestoreWhereabouts() error {
	if err := os.Symlink(c.program("whereabouts"), c.whereabouts()); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// whereabouts is the path under which the CNI plugin looks for Whereabouts' binary.
func (c *Cluster) whereabouts() string { return filepath.Join(c.dir, "bin", "whereabouts") }

// installPlugin tells containerd about the CNI plugin, and the plugin about the network.
func (c *Cluster) installPlugin(n Network) error {
	list, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "default",
		"plugins": []map[string]any{{"type": "plugin", "folder": c.Plugin}},
	})
	if err != nil {
		return fmt.Errorf("encoding the network: %w", err)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "cni", "conf", "default.conflist"), list, 0o600); err != nil {
		return fmt.Errorf("writing the network: %w", err)
	}
	return errors.Join(c.RestoreWhereabouts(), c.SetNetwork(n))
}
