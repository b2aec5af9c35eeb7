// Package certmanager keeps cert-manager in this module's requirements, for the manifests that it carries and a test
// installs. None of its code is compiled into anything. After `go mod download`,
//
//	go list -m -f '{{.Dir}}/deploy/crds' github.com/cert-manager/cert-manager
//
// tells the folder. The import below is the smallest package there is; without one `go mod tidy` would drop the module.
package certmanager

import _ "github.com/cert-manager/cert-manager/pkg/apis/certmanager"
