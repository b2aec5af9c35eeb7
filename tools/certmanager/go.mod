// Pins the cert-manager whose CRDs the tests install.
module github.com/oakum-dev/oakum/tools/certmanager

go 1.26.0

require github.com/cert-manager/cert-manager v1.21.2
