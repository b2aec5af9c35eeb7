// Command payload is what runs in the pods of tests, and as their pause container: it waits for SIGTERM and ends at
// once, unless its flags say otherwise.
package main

import (
	"flag"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	finish := flag.Duration("finish", 0, "end after this time, not only at SIGTERM")
	code := flag.Int("code", 0, "the exit code after -finish")
	deaf := flag.Bool("deaf", false, "ignore SIGTERM, so that only SIGKILL ends it")
	flag.Parse()

	ended := make(chan os.Signal, 1)
	if *deaf {
		signal.Ignore(syscall.SIGTERM)
	} else {
		signal.Notify(ended, syscall.SIGTERM, os.Interrupt)
	}
	var finished <-chan time.Time
	if *finish > 0 {
		finished = time.After(*finish)
	}
	// Something to wait for: without it Go takes a wait that nothing ends for a deadlock.
	tick := time.NewTicker(time.Hour)
	for {
		select {
		case <-ended:
			return
		case <-finished:
			os.Exit(*code)
		case <-tick.C:
		}
	}
}
