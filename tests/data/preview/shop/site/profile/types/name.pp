type Profile::Name = Pattern[/\A[a-z]+\z/]
