# An amount.
type Profile::Amount = Variant[Integer[0], String[1]]
