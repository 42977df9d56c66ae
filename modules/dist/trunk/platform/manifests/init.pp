# @summary What every node of the platform gets: the sample of the README.
class platform {
  notify { 'platform class': }
}
