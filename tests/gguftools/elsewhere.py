"""An executor for tests, to which work goes as to another process."""

import pickle
from concurrent.futures import Executor, Future
from typing import Any


class Elsewhere(Executor):
    """Does work in this process, but what goes to it and comes back are bytes. sizes: of the tasks' batches."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        sent = pickle.dumps((fn, args))
        self.sizes.append(len(sent))
        function, arguments = pickle.loads(sent)
        done: Future[Any] = Future()
        try:
            done.set_result(pickle.loads(pickle.dumps(function(*arguments))))
        except Exception as error:
            done.set_exception(error)
        return done
