Facter.add(:site) { setcode { 'north' } }
