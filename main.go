// Command oakum keeps Kubernetes' IP pools from leaking.
package main

import (
	"os"

	"github.com/oakum-dev/oakum/cli"
)

// version is set by the linker.
var version = "dev"

func main() {
	os.Exit(cli.Run(version, os.Args, os.Stdout, os.Stderr))
}
