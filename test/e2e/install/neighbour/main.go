// Command neighbour is what runs in pods of tests that look at the network from inside. It answers on port 8080: / with its
// pod's name, /pods with the names of the pods in its namespace, as it is told by the API server, and /via?url=URL with what the
// URL answers it.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve answers until SIGTERM, and then ends at once.
func serve() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	mux := http.NewServeMux()
	for pattern, ask := range map[string]func(*http.Request) (string, error){
		"/{$}":  func(*http.Request) (string, error) { return os.Hostname() },
		"/pods": func(r *http.Request) (string, error) { return pods(r.Context()) },
		"/via":  func(r *http.Request) (string, error) { return via(r.Context(), r.FormValue("url")) },
	} {
		mux.HandleFunc(pattern, func(rw http.ResponseWriter, r *http.Request) {
			answer, err := ask(r)
			if err != nil {
				http.Error(rw, err.Error(), http.StatusBadGateway)
				return
			}
			_, _ = io.WriteString(rw, answer) // Who has gone needs no answer.
		})
	}
	server := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	select {
	case <-ctx.Done():
		return server.Close()
	case err := <-ended:
		return err
	}
}

// pods lists what is in the pod's namespace, one name a line, with what every pod is given for it.
func pods(ctx context.Context) (string, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return "", err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	namespace, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return "", err
	}
	list, err := client.CoreV1().Pods(string(namespace)).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	names := make([]string, len(list.Items))
	for i, pod := range list.Items {
		names[i] = pod.Name
	}
	return strings.Join(names, "\n"), nil
}

// via asks over a connection of its own, so that every question may go to another endpoint.
func via(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // It was only read.
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}
