package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// PowerOff ends all at once that runs on the node, containers and the control plane included. What is left is what a machine's
// disk would have, in the folder. Oakum's managers that run beside the cluster end too.
func (c *Cluster) PowerOff() error {
	c.killAll()
	errs := []error{c.killContainers(), c.Halt(), c.swept()}
	for _, memory := range []string{filepath.Join("containerd", "state"), "runc"} { // Elsewhere it is below /run.
		errs = append(errs, os.RemoveAll(filepath.Join(c.dir, memory)))
	}
	if c.services {
		errs = append(errs, forgetRules())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("powering the node off: %w", err)
	}
	return nil
}

// PowerOn starts the control plane and every program that has run on the node, after PowerOff, and waits until each is at work.
// When it returns pods may be yet to start again.
func (c *Cluster) PowerOn(ctx context.Context) error {
	if err := c.keepSwept(); err != nil {
		return err
	}
	if err := together(c.Resume, func() error { return c.Containerd.Start(ctx) }); err != nil {
		return fmt.Errorf("powering the node on: %w", err)
	}
	starts := make([]func() error, len(c.processes))
	for i, p := range c.processes {
		starts[i] = func() error { return p.Start(ctx) }
	}
	if err := together(starts...); err != nil {
		return fmt.Errorf("powering the node on: %w", err)
	}
	return nil
}
