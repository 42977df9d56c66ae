type Profile::Uid = Integer[1000, 60000]
