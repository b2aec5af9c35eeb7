// Package v1alpha1 is the configuration file of `oakum manager`: what can be set, what holds where nothing is set, and
// what is refused. It reads no file itself; Decode takes the content and returns settings that can be used as they are.
package v1alpha1
