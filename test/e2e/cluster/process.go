package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/oakum-dev/oakum/test/controlplane"
)

// Process is one of the cluster's programs. When it has ended it can be started again.
type Process struct {
	// Log is the path of what it printed.
	Log string

	path, root string // root is what it sees as /, if that is not empty.
	args, env  []string
	ready      readiness

	mu    sync.Mutex
	cmd   *exec.Cmd // nil before the first start
	began time.Time
	done  chan struct{} // closed when cmd has ended
}

// readiness tells why a process that began at that time is not at work; nil if it is.
type readiness func(ctx context.Context, began time.Time) error

// start starts a program of bin/node that ends with the cluster, and waits until it is at work.
func (c *Cluster) start(ctx context.Context, name string, ready readiness, args ...string) (*Process, error) {
	p := &Process{
		Log:   filepath.Join(c.dir, name+".log"),
		path:  c.program(name),
		args:  args,
		env:   []string{"PATH=" + filepath.Dir(c.program(name)) + ":/usr/sbin:/usr/bin:/sbin:/bin"},
		ready: ready,
	}
	return p, c.keep(ctx, p)
}

// keep starts a process that ends with the cluster.
func (c *Cluster) keep(ctx context.Context, p *Process) error {
	c.mu.Lock()
	c.processes = append(c.processes, p)
	c.mu.Unlock()
	return p.Start(ctx)
}

// Start starts the process and waits until it is at work. One that runs is left alone.
func (p *Process) Start(ctx context.Context) error {
	began, done, err := p.launch()
	if err != nil {
		return fmt.Errorf("starting %s: %w", filepath.Base(p.path), err)
	}
	var ended error
	err = Await(ctx, func(ctx context.Context) error {
		select {
		case <-done:
			ended = errors.New("it ended")
			return nil
		default:
			return p.ready(ctx, began)
		}
	})
	if err = errors.Join(ended, err); err != nil {
		text, _ := os.ReadFile(p.Log)
		lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
		return fmt.Errorf("waiting for %s: %w\n%s", filepath.Base(p.path), err, bytes.Join(lines[max(0, len(lines)-5):], []byte("\n")))
	}
	return nil
}

// launch starts the process unless it runs, and returns when it began and what is closed when it ends.
func (p *Process) launch() (began time.Time, done <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running() {
		return p.began, p.done, nil
	}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return began, nil, err
	}
	defer log.Close() //nolint:errcheck // The process has its own descriptor.
	cmd := exec.Command(p.path, p.args...)
	if p.root != "" {
		cmd.Path, cmd.Dir = "/"+filepath.Base(p.path), "/"
	}
	cmd.Env, cmd.Stdout, cmd.Stderr = p.env, log, log
	// A process of its own group hears nothing of a Ctrl-C, and it must not outlive whoever started it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Chroot: p.root}
	began = time.Now()
	if err := cmd.Start(); err != nil {
		return began, nil, err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // How it ended is in its log.
		close(ended)
	}()
	p.cmd, p.began, p.done = cmd, began, ended
	return began, ended, nil
}

// running tells whether the process has been started and has not ended. The caller holds the lock.
func (p *Process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return p.cmd != nil
	}
}

// Stop asks the process to end, and waits. One that does not run is left alone.
func (p *Process) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return nil
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping %s: %w", filepath.Base(p.path), err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(controlplane.Deadline):
		return fmt.Errorf("stopping %s: it did not end within %s", filepath.Base(p.path), controlplane.Deadline)
	}
}

// Kill ends the process without a warning, and waits. One that does not run is left alone.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running() {
		_ = p.cmd.Process.Kill() // It may have ended by itself.
		<-p.done
	}
}

// Signal sends the process a signal: SIGSTOP lets it hang, SIGCONT lets it go on.
func (p *Process) Signal(s os.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return fmt.Errorf("sending %s a signal: it does not run", filepath.Base(p.path))
	}
	return p.cmd.Process.Signal(s)
}
