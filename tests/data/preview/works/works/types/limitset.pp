type Works::Limitset = Hash[Works::Limit, Integer]
