type Works::Limit = Enum['nofile', 'nproc', 'core']
