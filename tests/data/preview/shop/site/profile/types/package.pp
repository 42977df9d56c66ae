type Profile::Package = Profile::Name
