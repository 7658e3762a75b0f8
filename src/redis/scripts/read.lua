return found()
