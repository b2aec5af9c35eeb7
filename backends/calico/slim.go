package calico

// attrTimestamp is when an address was handed out. Nobody here reads that.
const attrTimestamp = "timestamp"

// Slim takes out of an object what a cache need not hold: of an IPAMBlock of either group when addresses were handed out,
// and the copies of what many of its entries say alike. It leaves every other object as it is.
func Slim(o any) {
	switch o := o.(type) {
	case *IPAMBlock:
		o.Spec.slim()
	case *IPAMBlockV3:
		o.Spec.slim()
	}
}

func (s *IPAMBlockSpec) slim() {
	known := map[string]string{}
	once := func(text string) string {
		if same, ok := known[text]; ok {
			return same
		}
		known[text] = text
		return text
	}
	for i := range s.Attributes {
		a := &s.Attributes[i]
		a.Secondary = slimmed(a.Secondary, once)
		a.AlternateOwnerAttrs = slimmed(a.AlternateOwnerAttrs, once)
	}
}

// slimmed does as Slim for attributes. Whether there are any is evidence, so the last one stays.
func slimmed(attributes map[string]string, once func(string) string) map[string]string {
	if len(attributes) == 0 {
		return attributes
	}
	slim := make(map[string]string, len(attributes))
	for name, value := range attributes {
		if name != attrTimestamp || len(attributes) == 1 {
			slim[once(name)] = once(value)
		}
	}
	return slim
}
